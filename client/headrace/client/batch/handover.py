"""Tell a dataset in the main process which of its workers' batches the loop has taken.

A worker runs ahead of the loop, and so does the DataLoader: neither knows which batches the loop
has received. A batch from a worker therefore stays packed until the loop uses it, and then reports
this here.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a worker's batch comes from.

    Attributes:
        key: Names the dataset object, in all processes.
        moves: How often that dataset had been moved by hand when the batch was read.
    """

    key: str
    moves: int


class _Owner(Protocol):
    def note_look(self, token: bytes, *, moves: int) -> None: ...


_OWNERS: weakref.WeakValueDictionary[str, _Owner] = weakref.WeakValueDictionary()


def register_owner(key: str, owner: _Owner) -> None:
    """Report the batches with this key to a dataset, as long as it exists."""
    _OWNERS[key] = owner


def note_look(origin: Origin, token: bytes) -> None:
    """Tell the dataset that the loop has got the batch with this token."""
    owner = _OWNERS.get(origin.key)
    if owner is not None:
        owner.note_look(token, moves=origin.moves)
