"""Measure which share of its steps a training loop waits for each library of the exam.

    EXAM_KIND=rows PYTHONPATH=tests:examples python -m exam.waits --json docs/exam/waits.json

One rank with two workers (``--workers``) reads batches of 48 by the library's entry, the same that
answers the questions, in steps of 20 ms in which the processor is free. ``EXAM_KIND`` is ``rows``
(4 KiB a sample), ``tokens`` (8 KiB) or ``images`` (64 KiB, as of JPEG files; no entry decodes
anything). ``warm`` reads from local files, and from servers, that were read before. ``cold`` reads
from a store with the latencies of S3 (`support.slow_store`), through empty caches, for libraries
whose entry reads S3.
Rows of other runs in the file are kept, so that short runs can be put together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.reader import touch
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
    parser.add_argument("--workers", type=int, default=_WORKERS)
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    if not KIND:
        parser.error("EXAM_KIND is not set; expected rows, tokens or images")
    for library, name in zip(LIBRARIES, names, strict=True):
        if name in given.only:
            found = _measured(library, given)
            named = name if given.workers == _WORKERS else f"{name}, {given.workers} workers"
            _keep(given.json, named, found)


def _measured(library: Library, given: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="exam-") as folder,
        Candidate(library, Path(folder)) as candidate,
    ):
        for store in given.stores:
            if store == "cold" and not library.reads_s3:
                continue
            try:
                runs = [
                    _run(candidate, given.workers, is_cold=store == "cold")
                    for _ in range(given.rounds)
                ]
                found[store] = {key: [run[key] for run in runs] for key in runs[0]}
            except RuntimeError as error:
                found[store] = {"error": str(error)[:300]}
            print(f"{time.strftime('%X')} {library.name} {KIND} {store}: {found[store]}")
            sys.stdout.flush()
    return {"version": library.version(), **found}


def _run(candidate: Candidate, workers: int, *, is_cold: bool) -> dict[str, float]:
    """Read some steps, and return what they cost."""
    job = replace(candidate.job(world=1), workers=workers, save_every=_STEPS, step_s=_STEP_S)
    data = candidate.data("a")
    touch(data)
    with ExitStack() as stack:
        if is_cold:
            store = stack.enter_context(
                slow_store(data.parent, median_ms=20.0, p99_ms=150.0, mb_per_s=80.0)
            )
            variables = {
                "AWS_ENDPOINT": store.endpoint,
                "S3_ENDPOINT_URL": store.endpoint,
                "AWS_ALLOW_HTTP": "true",
            }
            job = replace(
                job,
                folders=(f"s3://bucket/{data.name}",),
                store={**store.environment, **variables},
            )
        if candidate.library.has_service:
            port = free_port()
            service = stack.enter_context(candidate.service(job, port))
            job = replace(job, address=f"127.0.0.1:{port}", also=(service.pid,))
        if not is_cold:
            # What serves has read the samples then, too.
            figures(candidate, job)
        return figures(candidate, job)


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


def _keep(path: Path, name: str, found: Mapping[str, Any]) -> None:
    """Put rows into a file, beside those that are there."""
    all_rows = json.loads(path.read_text()) if path.exists() else {}
    kind = all_rows.setdefault(KIND, {})
    kind[name] = {**kind.get(name, {}), **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(all_rows), indent=1) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
