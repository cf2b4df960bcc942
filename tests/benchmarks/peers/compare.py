"""Run the readers turn by turn, and collect what they reach."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench_order_mosaicml import OURS, THEIRS, measure
from benchmarks.peers.kinds import PHOTOS, make, photographs
from benchmarks.peers.libraries import LIBRARIES, Child, Library, library_of
from benchmarks.peers.reader import REPEATED, REPEATED_BYTES
from benchmarks.peers.samples import Samples, save
from support.slow_store import slow_store

# Arbitrary: a server starts within it, on a machine that is busy. Some libraries hang.
_ANSWER_S = 60.0
_WRITE_S = 300.0
_TRIAL_S = 0.5
_COLD_S = 6.0  # of an epoch through an empty cache, at most
_COLD_ROUNDS = 3  # at most
_S3 = {"median_ms": 20.0, "p99_ms": 150.0, "mb_per_s": 80.0, "refused": 0.001}
_ORDERED = (10**6, 10**7, 10**8)
_PERMUTED = """
import json, resource, sys, time
import torch
samples, shard, batch = map(int, sys.argv[1:])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
torch.randperm(samples)[samples // 2 : samples // 2 + batch].tolist()
seconds = time.process_time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "mib": (peak - before) / 1024}))
"""

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: Of which the median counts.
        seconds: Of each measurement.
        share: Of the usual number of samples.
        end_at: No round begins after it, as ``time.monotonic()``.
        photos: A folder of JPEG files, for that kind.
    """

    rounds: int
    seconds: float
    share: float
    end_at: float
    photos: Path | None = None


@dataclass(slots=True)
class Row:
    """What one library reached on one kind of samples."""

    kind: str
    library: str
    child: Child
    workers: int
    runs: list[dict[str, float]]
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the figures of all rounds."""
        keys = sorted({key for run in self.runs for key in run})
        figures = {key: [run[key] for run in self.runs] for key in keys}
        named = {"kind": self.kind, "library": self.library, "workers": self.workers}
        return {**named, **figures, **({"error": self.error} if self.error else {})}


def compare(
    kinds: Sequence[str], parts: Sequence[str], effort: Effort, folder: Path, *, show: Show
) -> dict[str, Any]:
    """Measure.

    Args:
        kinds: Of samples.
        parts: Of ``local``, ``s3`` and ``order``.
        effort: How much.
        folder: For the samples.
        show: Told about progress.
    """
    found: dict[str, Any] = {"machine": _machine(), "rounds": effort.rounds, "kinds": {}}
    show("environments; the first run installs them, which takes minutes")
    found["versions"] = _versions()
    found.update({part: [] for part in ("local", *parts)})
    for kind in kinds if {"local", "s3"} & set(parts) else ():
        place = folder / kind
        samples = _samples(kind, effort)
        save(place / "samples", samples)
        found["kinds"][kind] = {
            "samples": samples.sample_count,
            "batch_size": samples.batch_size,
            "sample_bytes": len(samples.raw(0)),
        }
        del samples
        found["local"] += _local(kind, place, effort, show, measured="local" in parts)
        if "s3" in parts and kind != PHOTOS:
            found["kinds"][kind]["copies"] = copies = _copies(found["kinds"][kind])
            found["s3"] += _s3(kind, place, effort, show, copies)
    if "order" in parts:
        found["order"] = _orders(effort, show)
    found["machine"]["load at the end"] = round(os.getloadavg()[0], 1)
    return found


def _samples(kind: str, effort: Effort) -> Samples:
    if kind == PHOTOS:
        assert effort.photos is not None
        return photographs(effort.photos)
    return make(kind, share=effort.share)


def _local(
    kind: str, place: Path, effort: Effort, show: Show, *, measured: bool
) -> list[dict[str, Any]]:
    """Write the samples in every library's form, and measure reading them."""
    libraries = [each for each in LIBRARIES if each.reads(kind)]
    with _children(libraries, place, remote="", more={}) as children:
        for library, child in zip(libraries, children, strict=True):
            if library.written_by:
                continue
            found = child.ask("write", within_s=_WRITE_S)
            show(f"{kind}: {library.name} written: {found.get('error', 'well')}")
        if not measured:
            return []
        rows = _rows(kind, libraries, children, show, do="run", seconds=_TRIAL_S)
        _rounds(rows, effort, show, do="run", seconds=effort.seconds)
    return [row.as_json() for row in rows]


def _copies(about: Mapping[str, int]) -> int:
    return -(-REPEATED_BYTES // (about["samples"] * about["sample_bytes"]))


def _s3(kind: str, place: Path, effort: Effort, show: Show, copies: int) -> list[dict[str, Any]]:
    """Measure reading from a store with the latencies of S3, through caches of a fifth."""
    libraries = [library for library in LIBRARIES if library.reads_s3]
    with _children(libraries, place, remote="", more={}) as children:
        for child in children:
            child.ask("repeat", within_s=_WRITE_S, times=copies)
    with slow_store(place / REPEATED, tls=False, **_S3) as store:
        more = {**store.environment, "S3_ENDPOINT_URL": store.endpoint}
        with _children(libraries, place, remote="s3://bucket", more=more) as children:
            rows = _rows(kind, libraries, children, show, do="cold", seconds=_COLD_S)
            rounds = min(effort.rounds, _COLD_ROUNDS)
            few = dataclasses.replace(effort, rounds=rounds)
            _rounds(rows, few, show, do="cold", seconds=_COLD_S)
    return [row.as_json() for row in rows]


@contextmanager
def _children(
    libraries: Sequence[Library], place: Path, *, remote: str, more: dict[str, str]
) -> Iterator[list[Child]]:
    children: list[Child] = []
    try:
        for library in libraries:  # one by one, so that those that started are closed
            child = Child(library, place, remote=remote, variables=more)
            children.append(child)
        yield children
    finally:
        for child in children:
            child.close()


def _rows(
    kind: str,
    libraries: Sequence[Library],
    children: Sequence[Child],
    show: Show,
    *,
    do: str,
    seconds: float,
) -> list[Row]:
    """Try the numbers of workers; every reader has read once then."""
    rows = []
    for library, child in zip(libraries, children, strict=True):
        trials = {}
        for workers in library.workers:
            child.revive()
            trials[workers] = child.ask(do, within_s=_ANSWER_S, workers=workers, seconds=seconds)
        child.revive()
        rates = {workers: float(trial.get("rate", 0.0)) for workers, trial in trials.items()}
        best = max(rates, key=lambda workers: rates[workers])
        errors = [str(trial["error"]) for trial in trials.values() if "error" in trial]
        error = "" if rates[best] else errors[0]
        rows.append(Row(kind, library.name, child, best, [], error))
        tried = ", ".join(f"{workers} workers {rate:,.0f}/s" for workers, rate in rates.items())
        show(f"{kind}: {library.name} tried: {tried} {'; '.join(errors)}")
    return rows


def _rounds(rows: list[Row], effort: Effort, show: Show, *, do: str, seconds: float) -> None:
    for number in range(effort.rounds):
        if time.monotonic() > effort.end_at:
            show(f"out of time after {number} rounds")
            return
        turned = [*rows[number % len(rows) :], *rows[: number % len(rows)]]
        for row in turned:
            if row.error:
                continue
            found = row.child.ask(do, within_s=_ANSWER_S, workers=row.workers, seconds=seconds)
            if "error" in found:
                row.error = str(found["error"])
            else:
                row.runs.append(found)
        rates = ", ".join(f"{row.library} {row.runs[-1]['rate']:,.0f}" for row in rows if row.runs)
        show(f"{rows[0].kind}: {do} {number + 1} of {effort.rounds}: {rates}")


def _orders(effort: Effort, show: Show) -> list[dict[str, Any]]:
    mosaic, ours = library_of("mosaic").python(), library_of("ours").python()
    scripts = {
        "headrace": (ours, OURS),
        "MosaicML Streaming": (mosaic, THEIRS),
        "torch.randperm": (ours, _PERMUTED),
    }
    rows = []
    for samples in _ORDERED:
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in scripts}
        for _ in range(effort.rounds if samples < _ORDERED[-1] else 1):
            for name, (python, script) in scripts.items():
                runs[name].append(measure(python, script, samples))
        for name, each in runs.items():
            seconds, mib = ([run[index] for run in each] for index in (0, 1))
            rows.append({"samples": samples, "library": name, "seconds": seconds, "mib": mib})
        show(f"order of {samples:,} samples")
    return rows


def _versions() -> dict[str, str]:
    wanted = {
        library_of("ours"): ("grpcio", "pyarrow", "torch", "numpy"),
        library_of("mosaic"): ("mosaicml-streaming", "litdata", "filelock", "torch", "numpy"),
        library_of("lance"): ("lancedb", "grain", "datasets"),
        library_of("tfdata"): ("tensorflow-cpu",),
    }
    script = (
        "import importlib.metadata, json, sys; "
        "print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))"
    )
    found: dict[str, str] = {}
    for library, names in reversed(wanted.items()):
        command = [library.python(), "-c", script, *names]
        told = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
        found |= json.loads(told)
    return found


def _machine() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "memory GiB": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30,
        "Python": platform.python_version(),
        "load at the start": round(os.getloadavg()[0], 1),
    }
