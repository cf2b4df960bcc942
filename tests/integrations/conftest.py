"""A server for the frameworks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integrations.line import line_server


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server with ``train`` and ``val``."""
    with line_server(tmp_path_factory.mktemp("line")) as server:
        yield server.address
