"""Trace real calls of ReadBatches: which modules of the server a batch passes, in which order.

``python -m support.reading_order`` writes the list into CONTRIBUTING.md; a test holds it to what a
call does. Counted are the modules of which a function is entered from the moment at which the
method gets the request until the first batch goes out, in any thread that works for the call. The
call is the second of its kind, so that datasets are open and blocks in memory, and the compiled
loops are there. Left out are the rooms that only report (telemetry) or hold settings.
"""

from __future__ import annotations

import importlib.util
import tempfile
import threading
from pathlib import Path
from types import FrameType

import headrace.server
from headrace.server.kernels.loader import KERNELS
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import small_table, write_dataset
from support.running import running
from support.served import read

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
FIRST, LAST = "<!-- reading order: traced by tests/support/reading_order.py -->", "<!-- end -->"

_ROOT = str(Path(headrace.server.__file__).parent)
_BEGIN, _SEND = "ShardService._streaming.<locals>.respond", "WireCall.send"
_MESSAGES = 2  # the start of the stream, and its first batch
_ASIDE = ("telemetry.", "settings.")
# They work for all calls, and go on after this one.
_OTHER_THREADS = ("headrace-fetch", "headrace-alarms", "headrace-waiting")


class _Trace:
    """Notes modules in the order in which they are entered."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._has_begun = False
        self._left = _MESSAGES

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not self._left or not code.co_filename.startswith(_ROOT):
            return
        if threading.current_thread().name.startswith(_OTHER_THREADS):
            return
        self._has_begun |= code.co_qualname == _BEGIN
        name = code.co_filename[len(_ROOT) + 1 : -len(".py")].replace("/", ".")
        if self._has_begun and not name.startswith(_ASIDE):
            self.modules.setdefault(name)
            self._left -= code.co_qualname == _SEND


def traced() -> list[str]:
    """Return the modules that a warm call enters up to its first batch, in order."""
    KERNELS.load()
    assert KERNELS.wait(280)
    trace = _Trace()

    def note(frame: FrameType, event: str, argument: object) -> None:
        trace.note(frame, event, argument)

    with tempfile.TemporaryDirectory() as folder:
        write_dataset(folder, small_table(1000), shard_samples=[1000], block_bytes=1 << 20)
        # Threads that begin from now on; those of the server all do.
        threading.setprofile(note)
        try:
            with running(folder) as server:
                request = pb.ReadBatchesRequest(
                    dataset="rich",
                    global_batch_size=16,
                    world_size=1,
                    epoch_start=pb.EpochStart(),
                    epoch_count=1,
                    order=pb.OrderSpec(seed=1),
                )
                read(server.channel, request)
                trace = _Trace()
                read(server.channel, request)
        finally:
            threading.setprofile(None)
    return list(trace.modules)


def listed() -> list[str]:
    """Return the modules that the page lists, in order."""
    lines = PAGE.read_text().split(FIRST)[1].split(LAST)[0].strip().splitlines()
    return [line.split("`")[1].removesuffix(".py").replace("/", ".") for line in lines]


def main() -> None:
    """Write the list into its page."""
    page = PAGE.read_text()
    before, rest = page.split(FIRST)
    lines = [
        f"{number}. `{name.replace('.', '/')}.py`: {_purpose(name)}"
        for number, name in enumerate(traced(), start=1)
    ]
    text = "\n".join(lines)
    PAGE.write_text(f"{before}{FIRST}\n\n{text}\n\n{LAST}{rest.split(LAST)[1]}")


def _purpose(name: str) -> str:
    spec = importlib.util.find_spec(f"headrace.server.{name}")
    assert spec is not None
    assert spec.origin is not None
    return " ".join(Path(spec.origin).read_text().split('"""')[1].split("\n\n")[0].split())


if __name__ == "__main__":
    main()
