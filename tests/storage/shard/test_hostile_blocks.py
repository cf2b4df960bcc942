"""A numbered set of blocks that lie, 34 to 66; `test_hostile` has 01 to 33 and 67 to 73.

34-37 decompression bombs; 38-40 lying lengths of compressed buffers; 41-45 buffers outside their
block or over one another; 46-49 lying lengths of the message; 50-53 unknown versions, codecs and
kinds; 54-55 lying counts; 56-59 invalid UTF-8; 60-62 lying offsets; 63-66 noise. Each has the
checksum that its manifest states, so it is the decoding that must see the lie.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import ShardCorruptError
from headrace.storage import sample_bytes
from headrace.storage.shard.arrow_message import message_size
from storage import hostile_blocks
from storage.hostile_blocks import HOSTILE_BLOCKS, Codec, HostileBlock, honest_batch, message_of


@pytest.mark.parametrize("codec", ["lz4", "zstd", None])
def test_the_honest_block_is_read(codec: Codec | None) -> None:
    """What the hostile blocks are made of is valid, so it is the lie that is refused."""
    batch = honest_batch()
    stored = bytes(message_of(batch, codec=codec))
    raw_bytes = int(sample_bytes(batch).sum())

    found = HostileBlock(stored, batch.schema, batch.num_rows, raw_bytes).decode()

    assert found.equals(batch)


@pytest.mark.parametrize("name", HOSTILE_BLOCKS)
def test_hostile_blocks_are_refused_with_their_place(name: str) -> None:
    """Each is a typed error that names shard, block and byte offset, and says what is wrong."""
    make, message = HOSTILE_BLOCKS[name]
    block = make()

    with pytest.raises(ShardCorruptError, match=rf"evil\.arrow, block 7, at byte 4096.*{message}"):
        block.decode()


def test_hostile_blocks_need_no_memory() -> None:
    """With 300 MiB to be had, the refusals are the same: nothing was allocated for the lies."""
    found = subprocess.run(
        [sys.executable, str(hostile_blocks.__file__)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "OMP_NUM_THREADS": "1",
        },
    )

    wanted = [f"{name}: ShardCorruptError" for name in HOSTILE_BLOCKS if "GiB" not in name]
    assert (wanted, "", 0) == (found.stdout.splitlines(), found.stderr, found.returncode)


@pytest.mark.parametrize("codec", ["lz4", "zstd", None])
@pytest.mark.parametrize(
    "batch",
    [
        pa.RecordBatch.from_pydict({"x": pa.array([None] * 999, pa.string())}),
        pa.RecordBatch.from_pydict({"x": pa.array([True, None] * 999)}),
        pa.RecordBatch.from_pydict(
            {"x": pa.array([[[]], [], None] * 99, pa.list_(pa.list_(pa.int8())))}
        ),
        pa.RecordBatch.from_pydict({"x": pa.array([{}] * 999, pa.struct([]))}),
        pa.RecordBatch.from_pydict({"x": pa.array([b""] * 999, pa.binary(0))}),
        pa.RecordBatch.from_pydict({f"x{i}": pa.array([1], pa.int8()) for i in range(500)}),
    ],
    ids=["nulls", "bools", "empty lists", "empty structs", "no bytes", "many columns"],
)
def test_the_bound_leaves_room_for_honest_blocks(
    batch: pa.RecordBatch, codec: Codec | None
) -> None:
    """Blocks that are nearly all validity, offsets or padding are read."""
    stored = bytes(message_of(batch, codec=codec))
    block = HostileBlock(stored, batch.schema, batch.num_rows, int(sample_bytes(batch).sum()))

    assert block.decode().equals(batch)


def test_the_size_of_a_message_is_that_of_its_buffers() -> None:
    """What is added up is what the decoded buffers hold."""
    batch = honest_batch()
    message = pa.ipc.read_message(bytes(message_of(batch, codec="zstd")))

    size = message_size(message)

    decoded = pa.ipc.read_record_batch(message, batch.schema)
    buffers = [buffer for column in decoded.columns for buffer in column.buffers()]
    assert sum(buffer.size for buffer in buffers if buffer is not None) == size.decoded_bytes
    assert (14, True) == (size.buffer_count, size.is_compressed)


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_nulls_where_the_manifest_promises_none_are_refused(codec: Codec | None) -> None:
    """A column that is served without nulls never has one, whatever its block says."""
    batch = pa.RecordBatch.from_pydict({"x": [1, None, 3], "y": [None, 5, 6]})
    promised = pa.schema([pa.field("x", pa.int64()), pa.field("y", pa.int64(), nullable=False)])
    stored = bytes(message_of(batch, codec=codec))

    with pytest.raises(ShardCorruptError, match="column 'y' contains 1 nulls, none expected"):
        HostileBlock(stored, promised, 3, 48).decode()
