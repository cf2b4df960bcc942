"""A dataset made where its rank is not known yet says so, and never reads everything on each rank.

Lightning starts its processes without a rank, and torch.distributed may begin after the dataset.
"""

from __future__ import annotations

import pytest
import torch.distributed as dist

from headrace.client import RemoteDataset
from headrace.client.options.ranks import resolve_ranks
from headrace.errors import BadArgumentError


def test_a_process_of_lightnings_is_told_to_give_its_rank() -> None:
    """Not to start with torchrun, which is what a lone WORLD_SIZE means elsewhere."""
    environment = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}

    with pytest.raises(BadArgumentError, match=r"train_dataloader\(\), and give rank=") as caught:
        resolve_ranks(None, None, environment=environment)

    assert "torchrun" not in caught.value.message


def test_a_dataset_made_before_the_ranks_were_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its first loop, before a batch: each of the two ranks would read all samples."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    dataset = RemoteDataset("localhost:1", "d", batch_size=4)
    told = RemoteDataset("localhost:1", "d", batch_size=4, rank=0, world_size=1)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)

    with pytest.raises(BadArgumentError, match=r"made before torch\.distributed.*2 ranks"):
        iter(dataset)
    iter(told)
