"""Measure which share of its steps a training loop waits for each library of the exam.

    EXAM_KIND=rows PYTHONPATH=tests:examples python -m exam.waits --json docs/exam/waits.json

One rank with two workers, headrace also without, reads batches of 48 by the library's entry, the
same that answers the questions, in steps of 20 ms in which the processor is free. ``EXAM_KIND`` is
``rows`` (4 KiB a sample), ``tokens`` (8 KiB) or ``images`` (JPEG files of 64 KiB, batches of 8,
which are decoded).

``warm`` reads from local files, and from servers, that were read before. ``cold`` reads from a
store with the latencies of S3 (`support.slow_store`), through empty caches, where a library reads
S3 or HTTP and asks for no lists of objects. Rounds of all libraries are interleaved. Rows of other
runs in the file are kept, so that short runs can be put together.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.reader import touch
from exam import pictures
from exam.candidate import Candidate
from exam.job import KIND, Job
from exam.libraries import LIBRARIES, Library
from exam.ranks import free_port
from support.slow_store import slow_store

_STEP_S = 0.02
_STEPS = 100
_WORKERS = 2


def main() -> None:
    """Measure, and write the figures."""
    names = [library.entry.rpartition(".")[2] for library in LIBRARIES]
    parser = argparse.ArgumentParser(
        prog="exam.waits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="libraries")
    parser.add_argument("--stores", nargs="*", choices=["warm", "cold"], default=["warm", "cold"])
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")
    parser.add_argument("--minutes", type=float, default=60.0, help="no round begins after them")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    if not KIND:
        parser.error("EXAM_KIND is not set; expected rows, tokens or images")
    end_at = time.monotonic() + 60 * given.minutes
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exam-")))
        os.environ["EXAM_PICTURES"] = str(folder / "pictures")
        if KIND == "images":
            pictures.make(folder / "pictures")
        loops = [
            loop
            for library, name in zip(LIBRARIES, names, strict=True)
            if name in given.only
            for loop in _loops(library, name, folder, given.stores, stack)
        ]
        for number in range(given.rounds):
            if time.monotonic() > end_at:
                _show(f"out of time after {number} rounds")
                break
            for loop in [*loops[number % len(loops) :], *loops[: number % len(loops)]]:
                loop.run()
            for loop in loops:
                _keep(given.json, loop)


def _loops(
    library: Library, name: str, folder: Path, stores: Sequence[str], stack: ExitStack
) -> Iterator[_Loop]:
    """Yield the loops over one library, each read once where it is to be warm."""
    (folder / name).mkdir()
    candidate = stack.enter_context(Candidate(library, folder / name))
    for store in stores:
        for workers in (_WORKERS, 0) if name == "ours" else (_WORKERS,):
            named = name if workers == _WORKERS else f"{name}, {workers} workers"
            loop = _Loop(candidate, named, store, workers)
            if store == "cold" and library.cold not in ("s3", "http"):
                loop.not_read = library.cold
            elif store == "warm":
                loop.warm(stack)
            yield loop


class _Loop:
    """One training loop that is measured again and again.

    Attributes:
        candidate: Of the library.
        name: Of its row.
        store: ``warm`` or ``cold``.
        not_read: Why it cannot be measured.
        error: What ended a run.
        runs: The figures of each round.
    """

    def __init__(self, candidate: Candidate, name: str, store: str, workers: int) -> None:
        self.candidate, self.name, self.store = candidate, name, store
        self.not_read = self.error = ""
        self.runs: list[dict[str, float]] = []
        self._workers = workers
        self._job: Job | None = None

    def warm(self, stack: ExitStack) -> None:
        """Read once, so that files and what serves have been read."""
        try:
            touch(self.candidate.data("a"))
            self._job = self._served(self._plain(), stack)
            figures(self.candidate, self._job)
        except RuntimeError as error:
            self.error = str(error)[:300]

    def run(self) -> None:
        """Measure a round, unless an earlier one failed."""
        if self.not_read or self.error:
            return
        try:
            found = figures(self.candidate, self._job) if self._job else self._cold()
        except RuntimeError as error:
            self.error = str(error)[:300]
            _show(f"{self.name} {KIND} {self.store}: {self.error}")
            return
        self.runs.append(found)
        _show(f"{self.name} {KIND} {self.store}: {found}")

    def to_json(self) -> dict[str, Any]:
        """Return its row."""
        if self.not_read:
            return {"not_read": self.not_read}
        if self.error or not self.runs:
            return {"error": self.error or "there was no time for it"}
        return {key: [run[key] for run in self.runs] for key in self.runs[0]}

    def _plain(self) -> Job:
        job = self.candidate.job(world=1)
        return replace(job, workers=self._workers, save_every=_STEPS, step_s=_STEP_S)

    def _served(self, job: Job, stack: ExitStack) -> Job:
        if not self.candidate.library.has_service:
            return job
        port = free_port()
        service = stack.enter_context(self.candidate.service(job, port))
        return replace(job, address=f"127.0.0.1:{port}", also=(service.pid,))

    def _cold(self) -> dict[str, float]:
        """Read from a new store, by a new server, into empty caches."""
        data = self.candidate.data("a")
        touch(data)
        with ExitStack() as stack:
            store = stack.enter_context(
                slow_store(data.parent, median_ms=20.0, p99_ms=150.0, mb_per_s=80.0)
            )
            variables = {
                "AWS_ENDPOINT": store.endpoint,
                "S3_ENDPOINT_URL": store.endpoint,
                "AWS_ALLOW_HTTP": "true",
            }
            over = "s3://bucket" if self.candidate.library.cold == "s3" else store.endpoint
            job = replace(
                self._plain(),
                folders=(f"{over}{'' if over.startswith('s3') else '/bucket'}/{data.name}",),
                names=tuple(sorted(path.name for path in data.rglob("*") if path.is_file())),
                store={**store.environment, **variables},
            )
            return figures(self.candidate, self._served(job, stack))


def figures(candidate: Candidate, job: Job) -> dict[str, float]:
    """Run a loop, and return what it waited and what feeding it took.

    Raises:
        RuntimeError: It did not come to its end.
    """
    with candidate.ranks(job, do="wait") as ranks:
        ranks.wait()
        (lines,) = ranks.lines()
        told = {key: value for line in lines for key, value in line.items()}
    if "waits" not in told:
        raise RuntimeError(told.get("message") or told.get("not_offered") or "no batch for 60 s")
    waited = sum(told["waits"])
    return {
        "share": waited / (waited + len(told["waits"]) * told["step_s"]),
        "longest_s": max(told["waits"]),
        "first_s": told["first_s"],
        "cpu_us": 1e6 * told["cpu_s"] / told["samples"],
        "mib": told["pss"] / (1 << 20),
    }


def _keep(path: Path, loop: _Loop) -> None:
    """Put a row into a file, beside those that are there."""
    all_rows = json.loads(path.read_text()) if path.exists() else {}
    kind = all_rows.setdefault(KIND, {})
    row = {"version": loop.candidate.library.version(), loop.store: loop.to_json()}
    kind[loop.name] = {**kind.get(loop.name, {}), **row}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(all_rows), indent=1) + "\n")


def _show(line: str) -> None:
    print(f"{time.strftime('%X')} {line}", file=sys.stderr, flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
