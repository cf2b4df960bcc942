"""A tenant whose streams want all memory: short rows padded to a MiB, read and left in turns."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from attacks.harness import After, Attack, Begin, Counts, Target, main
from headrace.v1 import columns_pb2 as columns_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from support.datasets import write_dataset
from support.served import stub_of

_STREAMS = 8
_MIB = 1 << 20
_BUDGET = 64 * _MIB
# What a server has beside the budget: itself at work, its cache, and some MiB a stream.
_MOST = _BUDGET + (310 + 64 + 32 * 4) * _MIB
_ITEM = pa.field("item", pa.int8(), nullable=False)


def _datasets(folder: Path) -> dict[str, str]:
    rows = [[1] * (number % 9) for number in range(1000)]
    url = str(folder / "ragged")
    table = pa.table({"ragged": pa.array(rows, pa.list_(_ITEM))})
    write_dataset(url, table, shard_samples=[1000], block_bytes=1 << 16)
    return {"ragged": url}


def _strike(target: Target, begin: Begin) -> Counts:
    counts = {"batches": 0, "refused": 0}
    over = threading.Event()

    def stream(seed: int) -> None:
        pad = columns_pb.Pad(column="ragged", length=_MIB)
        request = pb.ReadBatchesRequest(
            dataset="ragged",
            global_batch_size=16,
            world_size=1,
            order=pb.OrderSpec(seed=seed),
            stages=[packed(pad)],
            epoch_start=pb.EpochStart(),
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(target.address, options=options) as channel:
            while not over.is_set():
                call: Any = stub_of(channel).ReadBatches(request, metadata=target.metadata)
                try:
                    for message in call:
                        counts["batches"] += message.WhichOneof("event") == "batch"
                        if over.wait(0.05):
                            break
                except grpc.RpcError:
                    counts["refused"] += 1
                finally:
                    call.cancel()

    threads = [threading.Thread(target=stream, args=(seed,)) for seed in range(_STREAMS)]
    for thread in threads:
        thread.start()
    until = begin()
    time.sleep(max(0.0, until - time.monotonic()))
    over.set()
    for thread in threads:
        thread.join()
    return counts


def _check(after: After) -> list[str]:
    status = Path(f"/proc/{after.pid}/status").read_text()
    (peak,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    found = int(peak.split()[1]) * 1024
    return [] if found <= _MOST else [f"the server took {found} bytes, more than {_MOST}"]


ATTACK = Attack(
    "a greedy tenant",
    _strike,
    options=("--payload-bytes=64MiB", "--cache-bytes=64MiB", "--max-streams=32"),
    datasets=_datasets,
    check=_check,
)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
