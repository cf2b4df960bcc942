"""Whoever verifies a dataset hears of blocks that cost reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.cli.group import run
from headrace.storage import commit_dataset, open_store
from support.shards import write_shard


@pytest.mark.parametrize(("large", "is_told"), [(40, True), (0, False)])
def test_verify_counts_shards_with_uneven_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], large: int, *, is_told: bool
) -> None:
    """Whoever wrote one shard by hand, of sizes that change by a thousand, is told."""
    batch = pa.RecordBatch.from_pydict({"x": [b"a"] * 300 + [b"a" * 1000] * large + [b"a"] * 300})
    store = open_store(str(tmp_path))
    commit_dataset(store, batch.schema, [write_shard(store, "a", [batch], block_bytes=200)])

    assert 0 == run(["verify", str(tmp_path)])
    assert is_told == ("the blocks of 1 shard differ" in capsys.readouterr().out)
