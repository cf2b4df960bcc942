"""Validation counts each sample once, on any number of ranks, in every framework.

What frameworks do with a gathered batch stands here in a few lines; the tests of the integrations
run the real ones.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch

from headrace.client import BatchLoader, RemoteDataset
from support.datasets import write_dataset
from support.running import server_of

SAMPLES, RIGHT, BATCH = 301, 253, 16


class GradientState:
    """What Accelerate's has for ``gather_for_metrics``: the loaders of running loops."""

    _shared_state: ClassVar[dict[str, list[Any]]] = {"references": []}

    def __init__(self) -> None:
        """Share the state."""
        self.references: list[Any] = self._shared_state["references"]

    def _add_dataloader(self, loader: object) -> None:
        self.references.append(loader)

    def _remove_dataloader(self, loader: object) -> None:
        self.references[:] = [each for each in self.references if each is not loader]


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[GradientState]:
    """Modules of Accelerate's names, and its state."""
    for name in ("accelerate.data_loader", "accelerate.state"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["accelerate.state"], "GradientState", GradientState, False)
    yield GradientState()
    assert not GradientState().references


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of 301 samples, 253 of which a model gets right, and of 64."""
    folder = tmp_path_factory.mktemp("validation")
    urls: dict[str, Any] = {}
    for name, count in (("odd", SAMPLES), ("even", 64)):
        urls[name] = str(folder / name)
        ids = np.arange(count)
        table = pa.table({"id": ids, "right": (ids < RIGHT).astype(np.float32)})
        write_dataset(urls[name], table, shard_samples=[count])
    with server_of(urls) as server:
        yield server.address


def _ranks(stack: ExitStack, address: str, world_size: int, name: str = "odd") -> list[Any]:
    return [
        stack.enter_context(
            RemoteDataset(
                address,
                name,
                batch_size=BATCH,
                end="pad",
                epochs="same",
                rank=rank,
                world_size=world_size,
            )
        )
        for rank in range(world_size)
    ]


def _gather_for_metrics(state: GradientState, parts: list[torch.Tensor]) -> torch.Tensor:
    assert 1 == len({len(part) for part in parts}), "a collective would abort"
    joined = torch.cat(parts)
    if state.references and state.references[-1].end_of_dataloader:
        remainder = state.references[-1].remainder
        return joined[:remainder] if remainder > 0 else joined
    return joined


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_accelerate_drops_the_repeats(
    address: str, accelerate: GradientState, world_size: int
) -> None:
    """``gather_for_metrics``, and so Trainer, sees each sample once, in each of two loops."""
    with ExitStack() as stack:
        ranks = _ranks(stack, address, world_size)
        for _ in range(2):
            gathered = [
                [
                    _gather_for_metrics(accelerate, [part[column] for part in parts])
                    for column in ("id", "right")
                ]
                for parts in zip(*ranks, strict=True)
            ]
            ids, right = (torch.cat(list(each)) for each in zip(*gathered, strict=True))

            assert list(range(SAMPLES)) == sorted(ids.tolist())
            assert (SAMPLES, RIGHT) == (len(right), int(right.sum()))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_plain_loop_leaves_the_repeats_out(address: str, world_size: int) -> None:
    """By their mark, and each rank has the same number of batches of the same size."""
    with ExitStack() as stack:
        found = [
            [(len(batch.is_pad), batch["right"][~batch.is_pad]) for batch in rank]
            for rank in _ranks(stack, address, world_size)
        ]

    assert {BATCH} == {size for rank in found for size, _ in rank}
    assert 1 == len({len(rank) for rank in found})
    right = torch.cat([own for rank in found for _, own in rank])
    assert (SAMPLES, RIGHT) == (len(right), int(right.sum()))


def test_a_last_batch_that_is_full_is_kept_whole(address: str, accelerate: GradientState) -> None:
    """It is the last one nevertheless, which metrics of single batches wait for."""
    with ExitStack() as stack:
        ends = []
        for parts in zip(*_ranks(stack, address, 2, "even"), strict=True):
            ends.append([(each.end_of_dataloader) for each in accelerate.references])
            assert 2 * BATCH == len(_gather_for_metrics(accelerate, [p["id"] for p in parts]))

    assert [[False, False], [True, True]] == ends


def test_workers_too(address: str, accelerate: GradientState) -> None:
    """A BatchLoader says the same in the process of the loop."""
    with ExitStack() as stack:
        (dataset,) = _ranks(stack, address, 1)
        with BatchLoader(dataset, num_workers=1) as loader:
            parts = [_gather_for_metrics(accelerate, [batch["id"]]) for batch in loader]

    assert list(range(SAMPLES)) == sorted(torch.cat(parts).tolist())


def test_a_loop_that_is_left_early_is_forgotten(address: str, accelerate: GradientState) -> None:
    """Accelerate does not take it for the running one afterwards."""
    with ExitStack() as stack:
        (dataset,) = _ranks(stack, address, 1)
        for _ in dataset:
            assert 1 == len(accelerate.references)
            break

    assert not accelerate.references
