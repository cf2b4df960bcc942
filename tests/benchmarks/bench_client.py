"""Measure the client against readers of local files: MosaicML Streaming and LitData.

``python tests/benchmarks/bench_client.py --others PYTHON`` (an interpreter that has
mosaicml-streaming and litdata beside torch; headrace is not needed there). Four kinds of samples
are written in each library's format; each reads its own from the page cache, shuffled, for a few
seconds after its first epoch or two seconds, in a process of its own, with 0, 1 and 2 workers where
it has workers. Ours come over gRPC, and beside it through the ring in shared memory, from a
`headrace serve` on the same machine, whose processor time is in the figure as well: both share the
cores. What is printed is samples a second, the ratio of ours over gRPC to each, the seconds from
making the dataset to its first batch, at the start and after a resume, and the processor time of
the client a GB, beside that of a bare gRPC stream of the same messages.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

_WARM_S, _MEASURED_S = 2.0, 5.0

TEXT_BYTES = 400
"""Of a text in the mean; each has half to one and a half times as many."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of sample."""

    name: str
    samples: int
    batch_size: int
    wanted: float
    encoding: str
    make: Callable[[np.random.Generator], Any]


CASES = (
    Case("rows", 200_000, 256, 60, "ndarray:float32", lambda rng: rng.random(40, np.float32)),
    Case(
        "tokens",
        16_000,
        64,
        12,
        "ndarray:uint16",
        lambda rng: rng.integers(0, 50_000, 4096, np.uint16),
    ),
    Case(
        "texts", 200_000, 256, 25, "str", lambda rng: rng.bytes(int(rng.integers(100, 301))).hex()
    ),
    Case("images", 4_000, 64, 2, "bytes", lambda rng: rng.bytes(65_536)),
)


def _samples(case: Case) -> Iterator[Any]:
    rng = np.random.default_rng(7)
    return (case.make(rng) for _ in range(case.samples))


# Each of the following runs in a process of its own, and prints a line of JSON.


def write_ours(case: Case, folder: str) -> dict[str, object]:
    """Write Arrow shards."""
    import pyarrow as pa  # noqa: PLC0415 - only this process has it

    from headrace.storage import ShardWriter, commit_dataset, open_store  # noqa: PLC0415

    samples = list(_samples(case))
    if case.encoding.startswith("ndarray"):
        rows = np.stack(samples)
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    else:
        column = pa.array(samples)
    table = pa.table({"x": column})
    store = open_store(folder)
    writer = ShardWriter(store, "part-0.arrow", schema=table.schema, compression="none")
    for batch in table.to_batches(max_chunksize=4096):
        writer.append(batch)
    commit_dataset(store, table.schema, [writer.close()])
    return {}


def write_mosaic(case: Case, folder: str) -> dict[str, object]:
    """Write MDS shards, not compressed."""
    from streaming import MDSWriter  # type: ignore[import-not-found] # noqa: PLC0415

    with MDSWriter(out=folder, columns={"x": case.encoding}) as writer:
        for sample in _samples(case):
            writer.write({"x": sample})
    return {}


def write_litdata(case: Case, folder: str) -> dict[str, object]:
    """Write LitData chunks of 64 MB."""
    from litdata.streaming.writer import BinaryWriter  # type: ignore[import-not-found] # noqa: PLC0415

    Path(folder).mkdir()
    writer = BinaryWriter(folder, chunk_bytes=1 << 26)
    for index, sample in enumerate(_samples(case)):
        writer[index] = {"x": sample}
    writer.done()
    writer.merge()
    return {}


def read_ours(case: Case, address: str, workers: int) -> dict[str, object]:
    """Read through a RemoteDataset over gRPC."""
    return _read_ours(case, address, workers, transport="grpc")


def read_ring(case: Case, address: str, workers: int) -> dict[str, object]:
    """Read through a RemoteDataset out of shared memory."""
    return _read_ours(case, address, workers, transport="ring")


def _read_ours(
    case: Case, address: str, workers: int, *, transport: Literal["ring", "grpc"]
) -> dict[str, object]:
    from headrace.client import RemoteDataset, Transport  # noqa: PLC0415

    del workers
    options: dict[str, Any] = {"batch_size": case.batch_size, "seed": 7}

    def opened(state: Any) -> tuple[RemoteDataset, Iterable[Any]]:
        dataset = RemoteDataset(address, case.name, transport=Transport(transport), **options)
        if state is not None:
            dataset.load_state_dict(state)
        return dataset, dataset

    return _read(opened, lambda dataset, _: dataset.state_dict(), case)


def read_mosaic(case: Case, folder: str, workers: int) -> dict[str, object]:
    """Read through a StreamingDataset and its own loader."""
    from streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415
    from streaming.base.util import clean_stale_shared_memory  # type: ignore[import-not-found] # noqa: PLC0415

    clean_stale_shared_memory()

    def opened(state: Any) -> tuple[Any, Iterable[Any]]:
        dataset = StreamingDataset(
            local=folder, shuffle=True, shuffle_seed=7, batch_size=case.batch_size
        )
        loader = StreamingDataLoader(dataset, batch_size=case.batch_size, num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        return loader, loader

    return _read(opened, lambda loader, _: loader.state_dict(), case)


def read_litdata(case: Case, folder: str, workers: int) -> dict[str, object]:
    """Read through a litdata StreamingDataset and its own loader."""
    from litdata import StreamingDataLoader, StreamingDataset  # type: ignore[import-not-found] # noqa: PLC0415
    from torch.utils.data._utils.collate import default_collate_fn_map  # noqa: PLC0415

    from benchmarks.peers.lit import keep  # noqa: PLC0415 - it needs litdata too

    default_collate_fn_map[memoryview] = keep

    def opened(state: Any) -> tuple[Any, Iterable[Any]]:
        dataset = StreamingDataset(folder, shuffle=True, seed=7)
        loader = StreamingDataLoader(dataset, batch_size=case.batch_size, num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        return loader, loader

    return _read(opened, lambda loader, _: loader.state_dict(), case)


def _read(
    opened: Callable[[Any], tuple[Any, Iterable[Any]]],
    state_of: Callable[[Any, int], Any],
    case: Case,
) -> dict[str, object]:
    began = time.perf_counter()
    owner, batches = opened(None)
    endless = itertools.chain.from_iterable(itertools.repeat(batches))
    next(endless)
    first_s = time.perf_counter() - began
    _drain(endless, _WARM_S)
    cpu = time.process_time()
    count, seconds = _drain(endless, _MEASURED_S)
    cpu = time.process_time() - cpu
    state = state_of(owner, count)
    del endless
    if hasattr(owner, "close"):
        owner.close()
    del owner, batches
    began = time.perf_counter()
    _, batches = opened(state)
    next(iter(batches))
    return {
        "rate": count * case.batch_size / seconds,
        "first_s": first_s,
        "resume_s": time.perf_counter() - began,
        "cpu_s": cpu,
        "samples": count * case.batch_size,
    }


def _drain(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(batches)
        count += 1
    return count, time.perf_counter() - began


def read_bare(case: Case, address: str, workers: int) -> dict[str, object]:
    """Receive the same messages as bytes, with gRPC alone."""
    import grpc  # noqa: PLC0415

    from headrace.client import ReadOptions  # noqa: PLC0415
    from headrace.order import OrderSpec  # noqa: PLC0415

    del workers
    options = ReadOptions(case.name, OrderSpec(seed=7, unit=case.batch_size), case.batch_size)
    request = options.to_request(epoch=0, position=0, token=None)
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_stream(
            "/headrace.v1.ShardService/ReadBatches",
            request_serializer=bytes,
            response_deserializer=bytes,
        )
        messages = call(request.SerializeToString())
        began, cpu, size = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - began < _MEASURED_S:
            size += len(next(messages))
        cpu = time.process_time() - cpu
        messages.cancel()
    return {"cpu_s": cpu, "bytes": size}


# The rest runs in the process that is called.


def _run(python: str, function: str, case: Case, place: str, workers: int = 0) -> dict[str, Any]:
    command = [python, __file__, "--run", function, case.name, place, str(workers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _median_run(
    python: str, function: str, case: Case, place: str, *, workers: int = 0, rounds: int
) -> dict[str, Any]:
    found_each = [_run(python, function, case, place, workers) for _ in range(rounds)]
    failed = [found for found in found_each if "error" in found]
    if failed:
        return failed[0]
    return {key: statistics.median(found[key] for found in found_each) for key in found_each[0]}


def _compare(case: Case, others: str, folder: Path, address: str, *, rounds: int) -> None:
    ours = _median_run(sys.executable, "read_ours", case, address, rounds=rounds)
    bare = _median_run(sys.executable, "read_bare", case, address, rounds=rounds)
    sample_bytes = len(np.asarray(case.make(np.random.default_rng(0))).tobytes())
    if case.encoding == "str":
        sample_bytes = TEXT_BYTES
    for found in (ours, bare):
        assert "error" not in found, found["error"]
    client = ours["cpu_s"] / (ours["samples"] * sample_bytes) * 1e9
    wire = bare["cpu_s"] / bare["bytes"] * 1e9
    _row(case, "headrace", 0, ours, ours)
    ring = _median_run(sys.executable, "read_ring", case, address, rounds=rounds)
    _row(case, "ring", 0, ring, ours)
    for name in ("mosaic", "litdata"):
        for workers in (0, 1, 2):
            found = _median_run(
                others, f"read_{name}", case, str(folder / name), workers=workers, rounds=rounds
            )
            _row(case, name, workers, found, ours)
    print(
        f"{case.name}: client {client:.2f} CPU s/GB, of which gRPC {wire:.2f}; above it "
        f"{client - wire:.2f} (wanted < 0.35)"
    )


def _row(case: Case, name: str, workers: int, found: dict[str, Any], ours: dict[str, Any]) -> None:
    if "error" in found:
        print(f"{case.name:8} {name:9} {workers} failed: {found['error']}")
        return
    ratio = ours["rate"] / found["rate"]
    print(
        f"{case.name:8} {name:9} {workers} {found['rate']:12,.0f} {ratio:8.1f}"
        f" {found['first_s']:8.3f} {found['resume_s']:8.3f}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--others", required=True, help="an interpreter with the other libraries")
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--rounds", type=int, default=3, help="runs of which the median counts")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}; {given.rounds} rounds")
    print("case     reader    workers   samples/s ours/its  first s resume s")
    chosen = [case for case in CASES if case.name in given.cases]
    with tempfile.TemporaryDirectory() as root:
        for case in chosen:
            folder = Path(root, case.name)
            folder.mkdir()
            _run(sys.executable, "write_ours", case, str(folder / "ours"))
            _run(given.others, "write_mosaic", case, str(folder / "mosaic"))
            _run(given.others, "write_litdata", case, str(folder / "litdata"))
            address = f"unix:{root}/{case.name}.sock"
            headrace = Path(sys.executable).parent / "headrace"
            command = [str(headrace), "serve", "--listen", address, "--log-level", "warning"]
            command += ["--json", f"{case.name}={folder / 'ours'}"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
                assert server.stdout is not None
                assert server.stdout.readline(), "the server did not start"
                try:
                    _compare(case, given.others, folder, address, rounds=given.rounds)
                finally:
                    server.terminate()


def _run_one(function: str, name: str, place: str, workers: str) -> None:
    case = next(case for case in CASES if case.name == name)
    call = globals()[function]
    found = call(case, place) if function.startswith("write") else call(case, place, int(workers))
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        _run_one(*sys.argv[2:])
    else:
        main()
