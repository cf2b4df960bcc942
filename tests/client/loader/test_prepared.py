"""Loaders that Accelerate prepared are refused, because they would change samples and states."""

from __future__ import annotations

import multiprocessing
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from headrace.client import BatchLoader, RemoteDataset
from headrace.errors import BadArgumentError
from support.batch_functions import end_workers
from support.scripted_server import scripted_server
from support.wire import epoch_messages, start_message

# How accelerate/data_loader.py of Accelerate 1.15 iterates what it has prepared.
_SOURCE = """
class DataLoaderShard:
    def __init__(self, base_dataloader):
        self.base_dataloader = base_dataloader

    def __iter__(self):
        dataloader_iter = self.base_dataloader.__iter__()
        current_batch = next(dataloader_iter)
        for next_batch in dataloader_iter:
            yield current_batch
            current_batch = next_batch
        yield current_batch
"""


def _script(request: Any, context: Any) -> Iterator[Any]:
    del request, context
    yield start_message()
    yield from epoch_messages(0, 0)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of a loader that was prepared, in a module of that name."""
    module = types.ModuleType("accelerate.data_loader")
    exec(_SOURCE, vars(module))  # noqa: S102 - the text above
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", module)
    return module.DataLoaderShard


@pytest.mark.parametrize("method", [None, "fork", "forkserver", "spawn"])
def test_a_prepared_loader_is_refused(prepared: Any, method: str | None) -> None:
    """With what to do instead, also where its workers would read, however they are started."""
    dataset = RemoteDataset("localhost:1", "d", batch_size=4)
    context = None if method is None else multiprocessing.get_context(method)
    workers = 0 if method is None else 1
    loader: Iterable[object] = prepared(
        DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
    )
    batches = iter(loader)

    with pytest.raises(
        BadArgumentError, match=r"expected headrace\.integrations\.accelerate\.trained"
    ):
        next(batches)
    end_workers()


def test_users_of_trainer_are_told_what_to_do_in_a_trainer(
    prepared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no accelerator to call."""
    module = types.ModuleType("transformers.trainer")
    exec("def train(loader):\n    return next(iter(loader))", vars(module))  # noqa: S102 - as Trainer reads
    monkeypatch.setitem(sys.modules, "transformers.trainer", module)
    loader = prepared(DataLoader(RemoteDataset("localhost:1", "d", batch_size=4), batch_size=None))

    with pytest.raises(
        BadArgumentError, match=r"integrations\.transformers\.RemoteTrainer"
    ) as caught:
        module.train(loader)

    assert "accelerator" not in caught.value.message


def test_other_loops_are_not(prepared: Any) -> None:
    """A loop over a prepared loader of something else may read a dataset, and so may any other."""
    with (
        scripted_server(_script) as server,
        RemoteDataset(server.address, "d", batch_size=4, epochs=1) as dataset,
    ):
        counts = [len(list(dataset)) for _ in prepared([1])]

    assert [3] == counts


def test_accelerate_leaves_a_batch_loader_as_it_is() -> None:
    """By the mark that it puts on loaders which it has prepared, and then returns as they are."""
    loader = BatchLoader(RemoteDataset("localhost:1", "d", batch_size=4))

    assert loader._is_accelerate_prepared is True
