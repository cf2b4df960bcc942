"""One reader in a process of its own: takes commands as lines of JSON, and answers in kind.

``python -m benchmarks.peers.child READER FOLDER REMOTE`` with ``tests/`` on the path, in any
environment that has the reader's library. FOLDER holds the samples and what the reader has written;
REMOTE is an ``s3://`` URL, or empty to read local files.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.reader import Reader, Stream, touch
from benchmarks.peers.samples import digest, load

_WARM_S = 0.3
_Batches = Iterator[Mapping[str, Any]]


def main() -> None:
    """Serve commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print; only answers may reach the other side
    name, folder, remote = sys.argv[1:]
    module = importlib.import_module(f"benchmarks.peers.{name}")
    reader: Reader | None = None
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        do = command.pop("do")
        try:
            if do in ("write", "repeat"):
                found = _write(module, Path(folder), **command)
            else:
                reader = reader or module.Reader(Path(folder), remote)
                found = _COMMANDS[do](reader, Path(folder), **command)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is its row's answer
            traceback.print_exc()
            text = str(error).strip().splitlines() or [""]
            found = {"error": f"{type(error).__name__}: {text[0]}"}
        gc.collect()
        print(json.dumps(found), file=answers, flush=True)
    if reader is not None:
        reader.close()
    os._exit(0)  # threads of some libraries never end


def _write(module: Any, folder: Path, *, times: int = 0) -> dict[str, Any]:
    """Write all samples, or, with ``times``, give what was written that many names."""
    began, samples = time.perf_counter(), load(folder / "samples")
    if times:
        module.repeat(samples, folder, times)
    else:
        module.write(samples, folder)
    return {"seconds": time.perf_counter() - began}


def _run(reader: Reader, folder: Path, *, workers: int, seconds: float) -> dict[str, Any]:
    """Measure the opening of a shuffled epoch, the rate, and a resume where it had stopped."""
    del folder
    reader.prepare()
    touch(reader.files)
    stream, batches, first_s = _opened(reader, workers, None)
    try:
        _count(batches, _WARM_S)
        used = _processor_s()
        samples, spent = _count(batches, seconds)
        used = _processor_s() - used
        state = stream.state()
    finally:
        del batches
        stream.close()
    found = {"rate": samples / spent, "first_s": first_s, "processor_us": used / samples * 1e6}
    del stream
    gc.collect()
    if state is not None:
        stream, batches, found["resume_s"] = _opened(reader, workers, state)
        del batches
        stream.close()
    return found


def _cold(reader: Reader, folder: Path, *, workers: int, seconds: float) -> dict[str, Any]:
    """Measure an epoch from an empty cache, from its opening on, for so long at most."""
    del folder
    reader.prepare()
    used, began = _processor_s(), time.perf_counter()
    stream = reader.open(workers, None)
    try:
        samples, first_s = 0, 0.0
        for batch in stream.epoch():
            first_s = first_s or time.perf_counter() - began
            samples += _size(batch)
            if time.perf_counter() - began >= seconds:
                break
        spent = time.perf_counter() - began
        used = _processor_s() - used  # before workers end
    finally:
        stream.close()
    return {
        "rate": samples / spent,
        "samples": samples,
        "first_s": first_s,
        "processor_us": used / samples * 1e6,
    }


def _check(reader: Reader, folder: Path) -> dict[str, Any]:
    """Read one epoch, and compare its samples with those that were to be written."""
    wanted = load(folder / "samples")
    reader.prepare()
    stream = reader.open(0, None)
    try:
        count = found = 0
        for batch in stream.epoch():
            count += _size(batch)
            found += digest(batch)
    finally:
        stream.close()
    names = sorted(wanted.columns)
    all_sums = sum(
        digest({name: [wanted.columns[name][row]] for name in names})
        for row in range(wanted.sample_count)
    )
    return {"samples": count, "equal": found == all_sums and count == wanted.sample_count}


_COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {"run": _run, "cold": _cold, "check": _check}


def _opened(reader: Reader, workers: int, state: Any) -> tuple[Stream, _Batches, float]:
    began = time.perf_counter()
    stream = reader.open(workers, state)
    epoch = iter(stream.epoch())
    next(epoch)
    first_s = time.perf_counter() - began
    later = itertools.chain.from_iterable(stream.epoch() for _ in itertools.count())
    return stream, itertools.chain(epoch, later), first_s


def _count(batches: _Batches, seconds: float) -> tuple[int, float]:
    began, samples = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds:
        samples += _size(next(batches))
    return samples, spent


def _processor_s() -> float:
    """Return the processor time of this process and of all that it started and that still run."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(told[1])
        spent[int(folder.name)] = int(told[11]) + int(told[12])
    ticks = 0
    for process, own in spent.items():
        at = process
        while at and at != os.getpid():
            at = parents.get(at, 0)
        ticks += own if at else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _size(batch: Mapping[str, Any]) -> int:
    return len(next(iter(batch.values())))


if __name__ == "__main__":
    main()
