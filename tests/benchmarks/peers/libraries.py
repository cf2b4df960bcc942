"""The readers, the environments that hold them, and the processes they run in."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.kinds import PHOTOS
from support.environments import environment, stub_torchvision

_TESTS = Path(__file__).parents[2]
_TORCH_PACKAGES = (
    "mosaicml-streaming==0.13.0",
    "litdata==0.2.76",
    "torch==2.13.0",
    "pillow==13.0.0",
    # MosaicML Streaming takes a file lock for each sample: 40 us with this one, 50 with 3.13 to
    # 3.20, 145 to 160 with 4.0 and 4.2.
    "filelock==3.12.4",
)
EXAM_PACKAGES = (
    "torch==2.13.0",
    "torchdata==0.11.0",
    "webdataset==1.0.2",
    "datasets==5.2.0",
    "grain==0.2.18",
    "lancedb==0.40.0",
    "pillow==13.0.0",
    "aiohttp==3.14.5",
    "requests==2.34.2",
)
"""Of libraries that one environment of the exam holds; some of them are readers here, too."""
_TENSORFLOW_PACKAGES = ("tensorflow-cpu==2.21.0",)


@dataclass(frozen=True, slots=True)
class Library:
    """One reader of the comparison.

    Attributes:
        name: What it is called in tables.
        module: Its module in this folder.
        packages: Of an environment of its own, which are named with their versions; empty for ours.
        workers: Numbers of workers to choose from.
        reads_s3: Whether it is measured over an empty cache before a store, too.
        kinds: Of samples that it is measured with; empty for all.
        written_by: Module of the reader whose files it reads; empty if it writes its own.
        transforms: Whether it decodes and crops photographs, too.
    """

    name: str
    module: str
    packages: tuple[str, ...] = ()
    workers: tuple[int, ...] = (0,)
    reads_s3: bool = False
    kinds: tuple[str, ...] = ()
    written_by: str = ""
    transforms: bool = False

    def reads(self, kind: str) -> bool:
        """Return whether it is measured with a kind of samples."""
        if kind == PHOTOS:
            return self.transforms
        return not self.kinds or kind in self.kinds

    def python(self) -> str:
        """Return the interpreter; makes the environment where it is not there yet."""
        if not self.packages:
            return sys.executable
        if self.packages is EXAM_PACKAGES:
            return str(environment("exam", self.packages) / "bin" / "python")
        if self.packages is _TENSORFLOW_PACKAGES:
            return str(environment("peers-tensorflow", self.packages) / "bin" / "python")
        folder = environment("peers", self.packages, without=["torchvision"])
        stub_torchvision(folder)
        return str(folder / "bin" / "python")


LIBRARIES = (
    Library("headrace", "ours", reads_s3=True, transforms=True),
    Library(
        "MosaicML Streaming", "mosaic", _TORCH_PACKAGES, (0, 1, 2), reads_s3=True, transforms=True
    ),
    Library("LitData", "lit", _TORCH_PACKAGES, (0, 1, 2), reads_s3=True, transforms=True),
    Library("LitData, two workers", "lit", _TORCH_PACKAGES, (2,), written_by="lit"),
    Library("DataLoader, a file a sample", "files", workers=(0, 1, 2), transforms=True),
    Library("DataLoader, mapped arrays", "mapped", workers=(0, 1, 2)),
    Library("tf.data service", "tfdata", _TENSORFLOW_PACKAGES, transforms=True),
    Library("Hugging Face datasets", "hf", EXAM_PACKAGES, (0, 1, 2)),
    Library("Grain", "grains", EXAM_PACKAGES, (0, 1, 2)),
    Library("LanceDB", "lance", EXAM_PACKAGES, (0, 1, 2)),
    Library("Arrow Flight", "flight", written_by="ours"),
    Library("headrace, strings untouched", "untouched", kinds=("texts",), written_by="ours"),
)


def library_of(module: str) -> Library:
    """Return the reader of a module of this folder, the one that writes where there are two."""
    (found,) = (each for each in LIBRARIES if each.module == module and each.written_by != module)
    return found


class Child:
    """A reader in a process of its own.

    A reader that fails or is silent for too long is ended with all that it started; until it is
    started again it answers with its error.
    """

    def __init__(
        self, library: Library, folder: Path, *, remote: str, variables: Mapping[str, str]
    ) -> None:
        """Start it.

        Args:
            library: Which reader.
            folder: Of the samples.
            remote: URL to read from, or empty.
            variables: Added to the environment.
        """
        paths = [str(_TESTS), str(_TESTS.parent / "examples")]
        settings = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
        self._log = (folder / f"{library.module}.log").open("ab+")
        self._command = [
            *(library.python(), "-m", "benchmarks.peers.child"),
            *(library.module, str(folder), remote),
        ]
        self._variables = {**os.environ, **settings, **variables}
        self._process = self._started()
        self._error = ""

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._variables,
            start_new_session=True,  # so that its workers can be ended with it
        )

    def revive(self) -> None:
        """Start it again if it was ended."""
        if self._error:
            self.close()
            self._log = Path(self._log.name).open("ab+")  # noqa: SIM115 - `close` closes it
            self._process, self._error = self._started(), ""

    def ask(self, do: str, *, within_s: float, **options: Any) -> dict[str, Any]:
        """Run a command in it, and return what it found, or its ``error``."""
        if self._error:
            return {"error": self._error}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"do": do, **options}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._failed(f"ended with {self._process.wait(within_s)}")
        ready, _, _ = select.select([self._process.stdout], [], [], within_s)
        answer = self._process.stdout.readline() if ready else b""
        if not answer:
            ended = f"ended with {self._process.wait(20)}" if ready else ""
            return self._failed(ended or f"no answer within {within_s:.0f} s")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _failed(self, error: str) -> dict[str, Any]:
        self._end()
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        self._error = "; ".join([error, *last])
        return {"error": self._error}

    def close(self) -> None:
        """End it, and wait for that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        self._end()
        self._process.wait(20)
        self._process.stdout.close()
        self._log.close()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
