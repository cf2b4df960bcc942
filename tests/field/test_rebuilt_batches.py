"""Frameworks that rebuild each mapping they are given get a batch they can go on with.

Transformers' Trainer, for one, moves inputs to its device by ``type(data)({...})``.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from headrace.client import Batch, RemoteDataset
from support.scripted_server import scripted_server
from support.wire import epoch_messages, start_message


def _script(request: Any, context: Any) -> Iterator[Any]:
    del request, context
    yield start_message()
    yield from epoch_messages(0, 0)


def _first() -> Batch:
    with (
        scripted_server(_script) as server,
        RemoteDataset(server.address, "d", batch_size=4, epochs=1) as dataset,
    ):
        return next(iter(dataset))


def test_a_batch_is_rebuilt_from_its_columns() -> None:
    """The class of a batch makes one of any mapping, with the same values and no others."""
    batch = _first()

    rebuilt = type(batch)({name: value for name, value in batch.items()})  # noqa: C416 - as Trainer does

    assert list(batch) == list(rebuilt)
    assert all(batch[name] is rebuilt[name] for name in batch)
    assert "Batch(x: (4,) int64)" == repr(rebuilt)


def test_a_rebuilt_batch_can_be_copied_moved_and_sent() -> None:
    """As any other, whoever asks next."""
    rebuilt = Batch({"x": torch.arange(3)})

    for made in (copy.copy(rebuilt), rebuilt.to("cpu"), pickle.loads(pickle.dumps(rebuilt))):
        assert ["x"] == list(made)
        assert [0, 1, 2] == list(made["x"])


def test_what_is_lost_is_named() -> None:
    """A place in the order cannot be rebuilt, and the error says where to take it instead."""
    rebuilt = Batch({"x": torch.arange(3)})

    with pytest.raises(AttributeError, match=r"has no 'step', since it was made of .*collate_fn="):
        _ = rebuilt.step
