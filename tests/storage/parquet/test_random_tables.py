"""Random Delta tables and Parquet datasets have the rows that were written, null for null."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from headrace.storage import SourceOptions, open_dataset
from storage.parquet.random_delta import random_delta
from storage.parquet.random_parquet import random_parquet
from storage.random_values import shown


def _read(url: str, options: SourceOptions) -> Counter[str]:
    with open_dataset(url, source_options=options) as dataset:
        return Counter(
            shown(row)
            for block in range(dataset.block_count)
            for row in dataset.read_block(block).to_pylist()
        )


def _check_parquet(folder: Path, seed: int) -> None:
    place = folder / str(seed)
    expected = random_parquet(place, Random(seed))
    assert expected == _read(str(place), SourceOptions(missing_as_null=True)), seed


def _check_delta(folder: Path, seed: int) -> None:
    """Compare the newest version and an older one."""
    random = Random(seed)
    made = random_delta(folder / str(seed), random)
    older = random.choice(
        [at for at, rows in enumerate(made.versions) if rows and at >= made.first]
    )
    for version in (None, older):
        found = _read(str(made.folder), SourceOptions(table_version=version))
        assert made.versions[-1 if version is None else version] == found, (seed, version)


_CHECKS = {"delta": _check_delta, "parquet": _check_parquet}


@pytest.mark.parametrize("kind", list(_CHECKS))
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_tables_have_their_rows(tmp_path: Path, kind: str, first: int) -> None:
    """Types, partitions, vectors, columns added, renamed, dropped, widened; older versions too."""
    for seed in range(first, first + 10):
        _CHECKS[kind](tmp_path, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", list(_CHECKS))
@pytest.mark.parametrize("first", range(50, 5_000, 450))
def test_thousands_of_random_tables_have_their_rows(tmp_path: Path, kind: str, first: int) -> None:
    """The same, 5,000 times each."""
    for seed in range(first, first + 450):
        _CHECKS[kind](tmp_path, seed)
