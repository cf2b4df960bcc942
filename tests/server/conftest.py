"""Real datasets and real servers for the tests of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from support.datasets import write_dataset
from support.running import RICH_SAMPLES, Running, running
from support.served import rich_table

StartServer = Callable[..., Running]


@pytest.fixture(scope="session")
def rich() -> pa.Table:
    """The samples of the dataset ``rich``."""
    return rich_table(RICH_SAMPLES)


@pytest.fixture(scope="session")
def rich_url(rich: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset with every type of column, in five shards of unequal size and small blocks."""
    url = str(tmp_path_factory.mktemp("rich"))
    write_dataset(url, rich, shard_samples=(300, 1, 250, 49, 400), block_bytes=16_384)
    return url


@pytest.fixture(scope="session")
def served(rich_url: str) -> Iterator[Running]:
    """One server with default settings, for tests that only read."""
    with running(rich_url) as started:
        yield started


@pytest.fixture
def start(rich_url: str) -> Iterator[StartServer]:
    """Start servers with settings of their own; they stop with the test."""
    with ExitStack() as stack:

        def begin(url: str = rich_url, **settings: object) -> Running:
            return stack.enter_context(running(url, **settings))

        yield begin


@pytest.fixture
def broken_url(rich: pa.Table, tmp_path: Path) -> str:
    """A dataset of one shard, for tests that damage it."""
    url = str(tmp_path / "broken")
    write_dataset(url, rich, shard_samples=(RICH_SAMPLES,), block_bytes=16_384)
    return url
