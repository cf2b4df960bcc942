"""Trace a real batch: which modules it passes in the server and in the client, in which order.

``python -m support.reading_order`` writes both lists into CONTRIBUTING.md; tests hold them to what
a batch does. A module is listed where the first of its functions is entered.

Server: from the moment at which ReadBatches gets its request until the first batch goes out, in
every thread that works for the call. The call is the second of its kind: the dataset is open, its
blocks are in memory and the compiled loops are loaded. The rooms that only report (telemetry) or
hold settings are left out.

Client: from ``iter(dataset)`` to the first batch in the loop, over TCP. The loop's thread and the
thread that reads ahead divide the work as they find time, so the order varies a little.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from headrace.client import RemoteDataset, Transport
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import small_table, write_dataset
from support.running import Running, running
from support.served import read

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
LAST = "<!-- end -->"

_SAMPLES = 1000
_BEGIN, _SEND = "StreamCalls.messages", "WireCall.send"
_MESSAGES = 2  # the start of the stream, and its first batch
# What works out later steps does so before the first batch goes out, or after: as it happens.
_ASIDE = ("telemetry.", "settings.", "plan.steps_ahead")
# They work for all calls, and go on after this one.
_OTHER_THREADS = ("headrace-calls", "headrace-fetch", "headrace-waiting")


class _ServerTrace:
    """Notes the server's modules in the order in which they are entered."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._root = _root("headrace.server")
        self._has_begun = False
        self._left = _MESSAGES

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not self._left or not code.co_filename.startswith(self._root):
            return
        if threading.current_thread().name.startswith(_OTHER_THREADS):
            return
        self._has_begun |= code.co_qualname == _BEGIN
        name = _module(code.co_filename, self._root)
        if self._has_begun and not name.startswith(_ASIDE):
            self.modules.setdefault(name)
            self._left -= code.co_qualname == _SEND


def trace_server() -> list[str]:
    """Return the modules of the server that a warm call enters up to its first batch, in order."""
    trace = _ServerTrace()

    def note(frame: FrameType, event: str, argument: object) -> None:
        trace.note(frame, event, argument)

    # Threads that begin from now on; those of the server all do.
    threading.setprofile(note)
    try:
        with _served() as server:
            request = pb.ReadBatchesRequest(
                dataset="rich",
                global_batch_size=16,
                world_size=1,
                epoch_start=pb.EpochStart(),
                epoch_count=1,
                order=pb.OrderSpec(seed=1),
            )
            read(server.channel, request)
            trace = _ServerTrace()
            read(server.channel, request)
    finally:
        threading.setprofile(None)
    return list(trace.modules)


def trace_client() -> list[str]:
    """Return the modules of the client that a first batch enters, in order."""
    modules: dict[str, None] = {}
    root = _root("headrace.client")
    # How a stream ends, which closes while its last message is on the way, varies.
    has_come = False

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if not has_come and event == "call" and frame.f_code.co_filename.startswith(root):
            modules.setdefault(_module(frame.f_code.co_filename, root))

    with (
        _served() as server,
        RemoteDataset(
            server.server.address,
            "rich",
            batch_size=_SAMPLES,
            epochs=1,
            transport=Transport("grpc"),
        ) as dataset,
    ):
        before = sys.getprofile()
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            # `list` would ask for the length first, which no training loop does.
            for _ in dataset:
                has_come = True
        finally:
            threading.setprofile(None)
            sys.setprofile(before)
    return list(modules)


@contextmanager
def _served() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(folder, small_table(_SAMPLES), shard_samples=[_SAMPLES], block_bytes=1 << 20)
        with running(folder) as server:
            yield server


@dataclass(frozen=True, slots=True)
class ReadingOrder:
    """A list of modules in CONTRIBUTING.md, and how it is traced."""

    package: str
    trace: Callable[[], list[str]]

    @property
    def first(self) -> str:
        """The line before the list."""
        return f"<!-- reading order of {self.package}: traced by tests/support/reading_order.py -->"

    def listed(self) -> list[str]:
        """Return the modules that the page lists, in order."""
        lines = PAGE.read_text().split(self.first)[1].split(LAST)[0].strip().splitlines()
        return [line.split("`")[1].removesuffix(".py").replace("/", ".") for line in lines]

    def write(self) -> None:
        """Write the list into its page."""
        page = PAGE.read_text()
        before, rest = page.split(self.first)
        lines = [
            f"{number}. `{name.replace('.', '/')}.py`: {_purpose(f'{self.package}.{name}')}"
            for number, name in enumerate(self.trace(), start=1)
        ]
        text = "\n".join(lines)
        after = rest.split(LAST, maxsplit=1)[1]
        PAGE.write_text(f"{before}{self.first}\n\n{text}\n\n{LAST}{after}")


SERVER = ReadingOrder("headrace.server", trace_server)
CLIENT = ReadingOrder("headrace.client", trace_client)


def _root(package: str) -> str:
    (folder,) = importlib.import_module(package).__path__
    return folder


def _module(path: str, root: str) -> str:
    return path[len(root) + 1 : -len(".py")].replace("/", ".")


def _purpose(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return " ".join(Path(spec.origin).read_text().split('"""')[1].split("\n\n")[0].split())


if __name__ == "__main__":
    SERVER.write()
    CLIENT.write()
