"""Compare opening the order with MosaicML Streaming's order of an epoch.

Run: ``python tests/benchmarks/bench_order_mosaicml.py [--samples N ...]``. It makes an environment
of its own in a temporary folder, and installs the package mosaicml-streaming there without what
only its storage needs: its partition and shuffle need NumPy alone. Both sides answer the same
question: which samples does the global batch in the middle of the epoch hold, in a process that
has just started? That package works out the whole epoch for it, at every epoch and every resume.
Times are of the processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np

_BATCH = 8192
_SHARD = 10_000
_PACKAGE = "mosaicml-streaming==0.13.0"

# The package's own modules, imported without its __init__, which wants torch and cloud clients.
THEIRS = """
import importlib, json, resource, sys, time, types
from pathlib import Path
import numpy as np
found = next(Path(p, "streaming") for p in sys.path if Path(p, "streaming").is_dir())
for name, path in (("streaming", found), ("streaming.base", found / "base")):
    module = types.ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module
partition = importlib.import_module("streaming.base.partition")
shuffle = importlib.import_module("streaming.base.shuffle")
samples, shard, batch = map(int, sys.argv[1:])
sizes = np.full(samples // shard, shard, np.int64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
ids = partition.get_partitions("relaxed", samples, 8, 1, 8, 1, batch // 8)
order = shuffle.get_shuffle("py1e", sizes, 8, 1, 0, 1 << 18)
ids = np.where(ids == -1, -1, order[ids])
seconds = time.process_time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "mib": (peak - before) / 1024}))
"""

OURS = """
import json, resource, sys, time
import numpy as np
from headrace.order import Order, OrderSpec, ShardTable
samples, shard, batch = map(int, sys.argv[1:])
counts = np.full(samples // shard, shard, np.int64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
order = Order(OrderSpec(seed=1), ShardTable(counts, counts * 3000))
order.sample_ids(0, samples // 2, samples // 2 + batch)
seconds = time.process_time() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "mib": (peak - before) / 1024}))
"""


def measure(python: str, script: str, samples: int) -> tuple[float, float]:
    """Return the processor seconds and the MiB that a script of this module takes."""
    command = [python, "-c", script, str(samples), str(_SHARD), str(_BATCH)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found["seconds"], found["mib"]


def _install(folder: str) -> str:
    venv.create(folder, with_pip=True)
    python = str(Path(folder, "bin", "python"))
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "numpy<2.2"], check=True)
    subprocess.run([*install, "--no-deps", _PACKAGE], check=True)
    return python


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="*", default=[10**7, 10**8])
    args = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"shards of {_SHARD} samples; the global batch of {_BATCH} in the middle of an epoch")
    print(f"{'samples':>12} {_PACKAGE:>30} {'headrace':>26}")
    with tempfile.TemporaryDirectory() as folder:
        theirs = _install(folder)
        for samples in args.samples:
            cells = [measure(theirs, THEIRS, samples), measure(sys.executable, OURS, samples)]
            texts = [f"{seconds:.3f} s, {mib:.0f} MiB" for seconds, mib in cells]
            print(f"{samples:12} {texts[0]:>30} {texts[1]:>26}")


if __name__ == "__main__":
    main()
