"""Claims about which part of a row a rank asks for."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client import Mesh, RemoteDataset, Slice
from headrace.client.options.mesh import mesh_rank
from headrace.errors import BadArgumentError


@pytest.mark.parametrize(
    ("at", "part", "without"),
    [
        ({"pp": 0, "cp": 1, "tp": 0}, (1, 2), ["labels"]),
        ({"pp": 1, "cp": 0, "tp": 1}, (0, 2), ["tokens", "labels"]),
        ({"pp": 2, "cp": 1, "tp": 1}, (1, 2), ["tokens"]),
    ],
)
def test_ranks_ask_for_what_their_place_needs(
    at: dict[str, int], part: tuple[int, int], without: list[str]
) -> None:
    """Those along cp for parts, those along pp for columns, and those along tp for the same."""
    cut = Slice(("tokens", "labels"), inputs=("tokens",), labels=("labels",))
    rank = mesh_rank(Mesh({"pp": 3, "cp": 2, "tp": 2}, at), rank=0, world_size=12)

    message: Any = cut.of_rank(rank).to_message()

    assert part == (message.part, message.part_count)
    assert without == list(message.without)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "tokens"}, r"Slice\.columns"),
        ({"layout": "snake"}, r"Slice\.layout is 'snake'"),
        ({"layout": "documents"}, r"expected boundaries="),
        ({"fill": {"tokens": 0}}, r"a number for each of tokens, labels"),
        ({"fill": {"tokens": 0, "labels": "x"}}, r"Slice\.fill\['labels'\]"),
    ],
)
def test_what_is_no_slice_is_refused(options: dict[str, Any], words: str) -> None:
    """With what was found and what is wanted."""
    with pytest.raises(BadArgumentError, match=words):
        Slice(**{"columns": ("tokens", "labels"), **options})


def test_a_slice_without_a_mesh_is_refused() -> None:
    """It would cut nothing, and nobody would know."""
    with pytest.raises(BadArgumentError, match="there is no mesh="):
        RemoteDataset("localhost:1", "d", batch_size=4, stages=[Slice(("tokens",))])
