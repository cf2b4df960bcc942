"""The examples in docstrings run, and give what they show."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.datasets import write_dataset
from support.running import server_of

_PACKAGES = ("client", "converter", "order", "server", "storage")


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for package in _PACKAGES:
        module = import_module(f"headrace.{package}")
        for name in module.__all__:
            if not callable(getattr(module, name)):
                continue
            for found in finder.find(getattr(module, name), f"{package}.{name}", module=False):
                if found.examples:
                    found.globs = {name: getattr(module, name) for name in module.__all__}
                    yield found


_EXAMPLES = {example.name: example for example in _examples()}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the API reference says that examples have: `url` and `address`."""
    url = str(tmp_path_factory.mktemp("docstrings") / "numbers")
    write_dataset(url, pa.table({"x": np.arange(10)}), shard_samples=[5, 5])
    with server_of({"numbers": url}) as server:
        yield {"url": url, "address": server.address}


@pytest.mark.parametrize("name", _EXAMPLES)
def test_an_example_gives_what_it_shows(
    given: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run by itself, in an empty folder, an example prints what its docstring says."""
    monkeypatch.chdir(tmp_path)
    example = _EXAMPLES[name]
    example.globs |= given
    told: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed = doctest.DocTestRunner(optionflags=flags).run(example, out=told.append).failed

    assert 0 == failed, "".join(told)


def test_what_people_begin_with_has_an_example() -> None:
    """The first names that a page of the API reference is opened for."""
    begun_with = {
        "client.BatchLoader",
        "client.Mixture",
        "client.NumpyDataset",
        "client.RemoteDataset",
        "converter.convert_files",
        "order.Order",
        "order.Skips",
        "server.start_server",
        "storage.open_dataset",
        "storage.open_store",
    }

    assert begun_with <= set(_EXAMPLES)
