"""Hold a forecast against what streams then took: 64 paced ranks on three replicas.

    PYTHONPATH=tests python tests/benchmarks/bench_demand.py

Each replica says what it will take in the next 60 s (``headrace_demand_*``); printed are the sums
of these, and of what was sent and spent in these 60 s, and their ratio.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
from prometheus_client.parser import text_string_to_metric_families

from headrace.bench import children
from support.datasets import write_dataset

_ROWS, _ROW_BYTES = 40_000, 4096
_WITHIN_S = 60


def main() -> int:
    """Print the forecast, what came, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--step-ms", type=int, default=200)
    parser.add_argument("--before-s", type=float, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        data = np.random.default_rng(0).integers(0, 256, (_ROWS, _ROW_BYTES), np.uint8)
        rows = pa.FixedSizeListArray.from_arrays(pa.array(data.ravel()), _ROW_BYTES)
        write_dataset(f"{folder}/d", pa.table({"x": rows}), shard_samples=[_ROWS // 8] * 8)
        metrics = [f"127.0.0.1:{_free_port()}" for _ in range(given.replicas)]
        servers = [
            stack.enter_context(
                children.serving(
                    {"d": f"{folder}/d"}, f"--metrics-listen={address}", "--log-level=error"
                )
            )
            for address in metrics
        ]
        seconds = given.before_s + _WITHIN_S + 20
        swarm = subprocess.Popen(
            [
                *(sys.executable, "-c", "from headrace.cli.main import main; main()", "loadtest"),
                *(",".join(server.address for server in servers), "d"),
                *(f"--ranks={given.ranks}", f"--batch-size={given.batch_size}"),
                *(f"--step-ms={given.step_ms}", f"--seconds={seconds}", "--processes=1"),
            ],
            stdout=subprocess.DEVNULL,
        )
        stack.callback(swarm.wait)
        stack.callback(swarm.kill)
        time.sleep(given.before_s)
        forecast = _sums(metrics, ("headrace_demand_bytes", "headrace_demand_processor_seconds"))
        names = ("headrace_sent_payload_bytes_total", "process_cpu_seconds_total")
        before = _sums(metrics, names)
        time.sleep(_WITHIN_S)
        took = [now - was for now, was in zip(_sums(metrics, names), before, strict=True)]
    for title, said, came in zip(("bytes", "processor s"), forecast, took, strict=True):
        print(f"{title:12} forecast {said:15,.1f}   took {came:15,.1f}   {said / came:6.3f}")
    return 0 if all(0.8 <= a / b <= 1.2 for a, b in zip(forecast, took, strict=True)) else 1


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _sums(addresses: Sequence[str], names: Sequence[str]) -> list[float]:
    sums = dict.fromkeys(names, 0.0)
    for address in addresses:
        with urlopen(f"http://{address}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in sums and sample.labels.get("within_s", "60") == "60":
                    sums[sample.name] += sample.value
    return list(sums.values())


if __name__ == "__main__":
    sys.exit(main())
