"""Claims about dealing as users write it: sizes of batches for unequal ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Deal, NumpyDataset, Sharding
from headrace.errors import BadArgumentError
from support.datasets import write_rows
from support.running import server_of


def test_ranks_of_other_sizes_share_the_global_batches(tmp_path: Path) -> None:
    """Through shared memory too, whose slots hold the batches of the rank."""
    write_rows(str(tmp_path / "d"), sample_count=64, width=1)
    sizes = {1: 2, 0: 13, 2: 1}
    sharding = Sharding(global_batch_size=16, deal=Deal(sizes=sizes, balance=False))
    listen = ("127.0.0.1:0", f"unix:{tmp_path}/socket")
    with server_of({"d": str(tmp_path / "d")}, listen=listen) as server:

        def read(address: str, **options: Any) -> list[list[float]]:
            given: dict[str, Any] = {"sharding": Sharding(global_batch_size=16), **options}
            with NumpyDataset(address, "d", epochs=1, **given) as dataset:
                return [batch["x"][:, 0].tolist() for batch in dataset]

        whole = read(server.address)
        for address in (server.address, listen[1]):
            ranks = [read(address, rank=rank, world_size=3, sharding=sharding) for rank in range(3)]
            assert [[13, 2, 1]] * 4 == [list(map(len, parts)) for parts in zip(*ranks, strict=True)]
            assert whole == [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Deal(sizes={0: 8, 2: 8}), r"Deal\.sizes is {0: 8, 2: 8}"),
        (lambda: Deal(sizes={0: 0}), r"Deal\.sizes\[0\] is 0"),
        (lambda: Deal(sizes=[8, 8]), r"Deal\.sizes is \[8, 8\]"),  # type: ignore[arg-type] # the claim
        (
            lambda: Sharding(global_batch_size=16, deal=Deal(sizes={0: 8, 1: 7})),
            "15 samples together, but global_batch_size is 16",
        ),
    ],
)
def test_what_is_no_size_of_each_rank_is_refused(make: Any, words: str) -> None:
    """With what was found and what is wanted."""
    with pytest.raises(BadArgumentError, match=words):
        make()
