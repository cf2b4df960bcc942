"""Compare what `headrace plan` says of a job with the job itself.

``PYTHONPATH=tests python tests/benchmarks/bench_plan.py`` writes datasets of several kinds, plans a
job of 32 ranks, and then serves it to as many paced readers. Beside each other stand the processor
time of the server, the bytes sent in payloads, and the reads of the store, as planned and as
counted in the second epoch, which is as warm as it gets; the store is a folder, whose reads the
server's metrics count.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

from headrace.bench import WORKLOADS
from headrace.bench.children import serving
from headrace.bench.read_batches import DEADLINES
from headrace.cli.stored.job_plan import Job
from headrace.client import BatchEvent, BatchReader, Place, ReadOptions
from headrace.client.wire.buffers import aligned
from headrace.order import OrderSpec
from support.threads import threads_of

_AHEAD_S = 4.0
_BATCH_BYTES = 512 << 10
"""Few enough batches are ahead of the trainer that each step makes the server work."""
_SHUFFLE_BYTES = 64 << 20
"""Less than the data, as in large datasets."""


def main() -> None:
    """Plan, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--mib", type=int, default=512)
    arguments = parser.parse_args()
    print(f"{'workload':<10}{'':<12}{'planned':>12}{'counted':>12}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for workload in WORKLOADS:
            url = f"{folder}/{workload.name}"
            workload.write(url, raw_bytes=arguments.mib << 20)
            job = Job(
                ranks=arguments.ranks,
                step_ms=arguments.step_ms,
                batch_size=max(1, _BATCH_BYTES // workload.sample_bytes),
                shuffle_bytes=_SHUFFLE_BYTES,
            )
            planned = json.loads(
                subprocess.run(
                    [
                        *(Path(sys.executable).parent / "headrace", "plan", url, "--json"),
                        f"--ranks={job.ranks}",
                        f"--step-ms={job.step_ms}",
                        f"--batch-size={job.batch_size}",
                        f"--shuffle-bytes={job.shuffle_bytes}",
                    ],
                    capture_output=True,
                    check=True,
                ).stdout
            )
            reading = planned["stored_bytes_per_s"] * planned["cost"]["cold_byte_s"]
            warm_cores = planned["cores"] - reading
            found = _run(url, job, seconds=arguments.seconds)
            for name, plan, count in (
                ("processors", warm_cores, found["cores"]),
                ("MiB/s", planned["sent_bytes_per_s"] / 1.05 / 2**20, found["mib_per_s"]),
                ("reads", planned["epoch_reads"] / planned["replicas"], found["reads"]),
            ):
                print(
                    f"{workload.name:<10}{name:<12}{plan:>12.2f}{count:>12.2f}{plan / count:>8.2f}"
                )


def _run(url: str, job: Job, *, seconds: float) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        metrics = f"127.0.0.1:{probe.getsockname()[1]}"
    with serving(
        {"planned": url}, f"--metrics-listen={metrics}", stderr=subprocess.DEVNULL
    ) as server:
        # All blocks are read before the job, as in its second epoch.
        _read_all(server.address, job)
        with urlopen(f"http://{metrics}/metrics") as answer:
            counted = re.findall(
                r"^headrace_store_fetch_seconds_count\{[^}]*\} (\S+)",
                answer.read().decode(),
                re.MULTILINE,
            )
        stop, sent = threading.Event(), [0] * job.ranks
        ranks = range(job.ranks)
        with threads_of(lambda rank: _paced(server.address, job, rank, stop, sent), ranks):
            time.sleep(_AHEAD_S)
            start, before, bytes_before = time.monotonic(), server.processor_s(), sum(sent)
            time.sleep(seconds)
            elapsed = time.monotonic() - start
            used, payload = server.processor_s() - before, sum(sent) - bytes_before
            stop.set()
    return {
        "cores": used / elapsed,
        "mib_per_s": payload / 2**20 / elapsed,
        "reads": sum(map(float, counted)),
    }


def _options(job: Job, rank: int, ranks: int) -> ReadOptions:
    size = job.batch_size * ranks
    return ReadOptions(
        "planned", OrderSpec(unit=size, shuffle_bytes=job.shuffle_bytes), size, rank, ranks
    )


def _reader(address: str, options: ReadOptions) -> BatchReader:
    return BatchReader([address], options, place=Place(), deadlines=DEADLINES, allocate=aligned)


def _read_all(address: str, job: Job) -> None:
    with closing(_reader(address, _options(job, 0, 1)).events()) as events:
        for event in events:
            if not isinstance(event, BatchEvent):
                return


def _paced(address: str, job: Job, rank: int, stop: threading.Event, sent: list[int]) -> None:
    """Take a batch every step, at a phase of its own."""
    due = time.monotonic() + rank / job.ranks * job.step_ms / 1e3
    with closing(_reader(address, _options(job, rank, job.ranks)).events()) as events:
        for event in events:
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            due += job.step_ms / 1e3
            if isinstance(event, BatchEvent):
                sent[rank] += event.header.payload_bytes


if __name__ == "__main__":
    main()
