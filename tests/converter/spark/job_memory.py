"""Write samples as a task does, and print the greatest memory after a little and after a lot."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Literal

import pyarrow as pa

from headrace.converter import WriteOptions
from headrace.converter.plan.schema import plan_columns
from headrace.converter.tasks.shard_task import SamplePlan, ShardTask
from headrace.storage import StoreOptions

BATCH_BYTES = 4 << 20
SHARD_BYTES = 32 << 20


def _batches(total_bytes: int) -> Iterator[pa.RecordBatch]:
    for number in range(total_bytes // BATCH_BYTES):
        text = pa.array([f"{number:08d}" * 50] * (BATCH_BYTES // 400))
        yield pa.RecordBatch.from_arrays([text], names=["text"])


def _peak_after(url: str, file_format: Literal["arrow", "mds"], total_bytes: int) -> int:
    writing = WriteOptions(shard_bytes=SHARD_BYTES, block_bytes=1 << 20).writing(file_format)
    columns = plan_columns(pa.schema({"text": pa.string()}))
    task = ShardTask("job", url, StoreOptions(), SamplePlan(columns, writing))
    for _ in task.rows(_batches(total_bytes), partition=0, stem="00000-job"):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folder: str, file_format: Literal["arrow", "mds"]) -> None:
    """Write three shards, then fifteen."""
    little = _peak_after(f"{folder}/little", file_format, 3 * SHARD_BYTES)
    much = _peak_after(f"{folder}/much", file_format, 15 * SHARD_BYTES)
    sys.stdout.write(json.dumps({"little": little, "more": much - little}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], "mds" if sys.argv[2] == "mds" else "arrow")
