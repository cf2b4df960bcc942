"""Every damaged block is listed with its place, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.storage import open_dataset
from headrace.storage.care.verify import Fault, verify_blocks
from support.datasets import small_table, write_dataset

SAMPLES = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of two shards with several blocks each."""
    write_dataset(str(tmp_path / "d"), small_table(SAMPLES), shard_samples=[200, 100])
    return tmp_path / "d"


def _faults(folder: Path) -> list[Fault]:
    with open_dataset(str(folder)) as dataset:
        return list(verify_blocks(dataset, threads=2))


def test_a_whole_dataset_has_no_faults(folder: Path) -> None:
    """What the writer wrote is what the manifest states."""
    assert _faults(folder) == []


def test_a_flipped_byte_is_found_with_its_samples(folder: Path) -> None:
    """The fault names shard, block, byte offset and the samples that are lost."""
    with open_dataset(str(folder)) as dataset:
        samples = [dataset.block_sample_range(block) for block in range(dataset.block_count)]
    shard = folder / "shards" / "part-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 3] ^= 1
    shard.write_bytes(content)

    [fault] = _faults(folder)

    assert fault.shard.endswith("part-00000.arrow")
    assert "SHARD_CORRUPT" == fault.reason
    assert samples[fault.block] == (fault.first_sample, fault.end_sample)
    assert fault.offset is not None
    assert fault.offset <= len(content) // 3


def test_every_block_of_a_lost_shard_is_a_fault(folder: Path) -> None:
    """The samples of the faults are those of the shard."""
    (folder / "shards" / "part-00001.arrow").unlink()

    faults = _faults(folder)

    assert {"OBJECT_NOT_FOUND"} == {fault.reason for fault in faults}
    lost = [sample for f in faults for sample in range(f.first_sample, f.end_sample)]
    assert list(range(200, 300)) == lost


def test_progress_counts_every_block_once_and_in_order(folder: Path) -> None:
    """A bar that is fed from it runs from the first block to the last."""
    done: list[int] = []
    with open_dataset(str(folder)) as dataset:
        list(verify_blocks(dataset, threads=2, progress=done.append))

        assert list(range(1, dataset.block_count + 1)) == done
