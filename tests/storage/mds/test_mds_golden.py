"""Shards that mosaicml-streaming 0.13.0 wrote, and what it reads of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.storage import OpenDataset, SourceOptions, open_dataset, open_store
from headrace.storage.mds import MdsWriter, commit_mds
from storage.mds.mds_values import rendered_samples

GOLDEN = Path(__file__).parent / "golden"
TRUSTED = SourceOptions(allow_pickle=True)


def _expected_samples() -> list[dict[str, Any]]:
    lines = (GOLDEN / "expected.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_all_encodings_read_to_the_values_that_mosaic_reads(name: str) -> None:
    """A dataset with a column of every encoding has the values that Mosaic's reader gives."""
    dataset = open_dataset(str(GOLDEN / name), source_options=TRUSTED)

    assert _expected_samples() == rendered_samples(dataset)


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        ("plain", "21fd628507bc70ec82f67dc326005154"),
        ("zstd", "2be384ea2def3712ff718a817458882f"),
    ],
)
def test_fingerprints_of_indexes_never_change(name: str, fingerprint: str) -> None:
    """The fingerprint of an index is the same on every machine and in every release."""
    dataset = open_dataset(str(GOLDEN / name), source_options=TRUSTED)

    assert fingerprint == dataset.fingerprint


def test_what_we_write_is_what_mosaic_writes_byte_for_byte(tmp_path: Path) -> None:
    """Shards and index written from what was read are those of Mosaic's own writer."""
    with open_dataset(str(GOLDEN / "plain"), source_options=TRUSTED) as dataset:
        _write_again(dataset, tmp_path)

    shards = sorted(path.name for path in (GOLDEN / "plain").glob("*.mds"))
    assert shards == sorted(path.name for path in tmp_path.glob("*.mds"))
    for name in shards:
        assert (GOLDEN / "plain" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert (GOLDEN / "plain/index.json").read_bytes() == (tmp_path / "index.json").read_bytes()


def _write_again(dataset: OpenDataset, folder: Path) -> None:
    store = open_store(str(folder))
    with MdsWriter(store, dataset.schema, hashes=(), size_limit=1 << 15) as writer:
        for block in range(dataset.block_count):
            writer.append(dataset.read_block(block))
        commit_mds(store, writer.close())
