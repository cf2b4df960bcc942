"""A server for the frameworks, and environments for those that are not installed here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from integrations.line import line_server
from support.environments import on_top

OWN = {
    "ray": ["ray[train]==2.60.0"],
    "databricks": ["databricks-sdk-air[data]==0.1.1", "mlflow-skinny==3.17.2"],
    "torchft": ["torchft==0.2.0"],
    "torchtitan": ["torchtitan==0.2.2", "triton"],
}
"""Frameworks that are too large for the development environment, with what pip installs."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server with ``train`` and ``val``."""
    with line_server(tmp_path_factory.mktemp("line")) as server:
        yield server.address


@pytest.fixture(scope="session")
def python_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Returns an interpreter that has a framework, and all that this one has."""

    @cache
    def python(name: str) -> str:
        if name not in OWN:
            return sys.executable
        return on_top(tmp_path_factory.mktemp(name), OWN[name])

    return python
