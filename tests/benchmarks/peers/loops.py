"""What readers that PyTorch's DataLoader drives have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.utils.data._utils as torch_workers
from torch.utils.data import DataLoader, Dataset

_WORKER_END_S = 0.3
_Collate = Callable[[Any], Any]


def end_workers_soon() -> None:
    """Let PyTorch wait less for a worker that does not end by itself, before it ends it.

    Workers of some libraries never do, and it waits five seconds for each; no end is measured.
    """
    torch_workers.MP_STATUS_CHECK_INTERVAL = _WORKER_END_S


class LoaderStream:
    """One loader, read again and again; it has no position to go on from."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def epoch(self) -> Iterator[Mapping[str, Any]]:
        """Yield an epoch in an order of its own."""
        yield from self._loader

    def state(self) -> Any:
        """Return nothing: the loader can't say where it is."""
        return None

    def close(self) -> None:
        """Let go of the loader, which ends its workers."""
        self._loader = None


class StatefulStream(LoaderStream):
    """One loader of a library whose loaders have states."""

    def state(self) -> Any:
        """Return where the loader is."""
        return self._loader.state_dict()


def stateful_loader(
    make: Callable[..., Any], dataset: Any, *, batch_size: int, workers: int, state: Any
) -> Any:
    """Make a library's own loader of its own dataset, and let it go on from a state, if any."""
    loader = make(
        dataset, batch_size=batch_size, num_workers=workers, persistent_workers=workers > 0
    )
    if state is not None:
        loader.load_state_dict(state)
    return loader


class LoaderReader:
    """A dataset of PyTorch behind its own DataLoader, shuffled."""

    def __init__(
        self, dataset: Dataset[Any], files: Path, *, batch_size: int, collate: _Collate | None
    ) -> None:
        self.files = files
        self._dataset = dataset
        self._batch_size = batch_size
        self._collate = collate

    def prepare(self) -> None:
        """Nothing is left of an earlier stream."""

    def open(self, workers: int, state: Any) -> LoaderStream:
        """Open a loader; it has no states."""
        assert state is None
        loader = DataLoader(
            self._dataset,
            batch_size=self._batch_size,
            shuffle=True,
            num_workers=workers,
            collate_fn=self._collate,
            persistent_workers=workers > 0,
        )
        return LoaderStream(loader)

    def close(self) -> None:
        """End nothing: all is in this process."""
