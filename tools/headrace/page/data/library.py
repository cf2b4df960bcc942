"""The open datasets of a page, and a cache of their blocks.

Contract:

1. A caller gets only what it may read. A name that it may not read gives the same error as a name
   that does not exist.
2. An open dataset is closed when it is neither kept nor in use.
3. The blocks in memory are limited to `_BLOCKS_BYTES`. A block of more than `MAX_BLOCK_BYTES` is
   refused before it is read.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.caches import LruCache
from headrace.errors import BadArgumentError, DatasetNotFoundError, HeadraceError
from headrace.server import DatasetConfig
from headrace.server.access.callers import Caller
from headrace.storage import DatasetVersion, OpenDataset, list_versions, open_dataset

_OPEN: Final = 32
_BLOCKS_BYTES: Final = 128 << 20
MAX_BLOCK_BYTES: Final = 256 << 20
"""The maximum raw size of a block to read (arbitrary)."""

_FRESH_S: Final = 10.0
"""How long an open dataset counts as current, unless a version was requested."""

_FRESH_FACTOR: Final = 50.0
"""It counts as current for at least this many times as long as opening it took."""


@dataclass(slots=True, eq=False)
class _Handle:
    config: DatasetConfig
    dataset: OpenDataset
    fresh_until: float
    users: int = 0
    is_kept: bool = True


class Library:
    """Open datasets for callers; safe for several threads.

    Args:
        configs: Returns the datasets by name, as they are now.
    """

    def __init__(self, configs: Callable[[], Mapping[str, DatasetConfig]]) -> None:
        self._configs = configs
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._handles: OrderedDict[tuple[str, str], _Handle] = OrderedDict()
        self._blocks: LruCache[tuple[str, int], pa.RecordBatch] = LruCache(
            max_bytes=_BLOCKS_BYTES, size=lambda block: block.nbytes
        )

    def names(self, caller: Caller) -> list[str]:
        """Return the sorted names of the datasets that a caller may read."""
        return sorted(filter(caller.may_read, self._configs()))

    def urls(self) -> list[str]:
        """Return the URLs of all datasets."""
        return [config.place[0] for config in self._configs().values()]

    def config(self, caller: Caller, name: str) -> DatasetConfig:
        """Return the configuration of a dataset.

        Raises:
            DatasetNotFoundError: There is no such dataset, or the caller may not read it.
        """
        config = self._configs().get(name) if caller.may_read(name) else None
        if config is None:
            raise DatasetNotFoundError(f"there is no dataset {name[:128]!r} here", dataset=name)
        return config

    def versions(self, caller: Caller, name: str) -> list[DatasetVersion]:
        """Return the versions of a dataset, newest first."""
        config = self.config(caller, name)
        return list(reversed(list_versions(config.place[0], options=config.store)))

    def version(self, caller: Caller, fingerprint: str) -> str | None:
        """Return the name of a dataset that has a version and that the caller may read, or None."""
        for name in self.names(caller):
            # Another dataset may be intact.
            with suppress(HeadraceError):
                with self.opened(caller, name) as dataset:
                    if dataset.fingerprint == fingerprint:
                        return name
                if any(one.fingerprint == fingerprint for one in self.versions(caller, name)):
                    return name
        return None

    @contextmanager
    def opened(self, caller: Caller, name: str, fingerprint: str = "") -> Iterator[OpenDataset]:
        """Yield an open dataset.

        Args:
            caller: The caller.
            name: The name of the dataset.
            fingerprint: The fingerprint of the version; empty for the served one.

        Raises:
            DatasetNotFoundError: There is no such dataset, or the caller may not read it.
            HeadraceError: It cannot be opened.
        """
        config = self.config(caller, name)
        handle = self._handle(name, config, fingerprint or config.place[1] or "")
        try:
            yield handle.dataset
        finally:
            with self._lock:
                handle.users -= 1
                self._close_unused(handle)

    def block(self, dataset: OpenDataset, block: int) -> pa.RecordBatch:
        """Return a block, from memory if it was shown recently.

        Raises:
            BadArgumentError: It is too large for a page.
            HeadraceError: It cannot be read.
        """
        return self._blocks.get((dataset.fingerprint, block), lambda: _read_block(dataset, block))

    def close(self) -> None:
        """Close datasets that are not in use."""
        with self._lock:
            while self._handles:
                self._evict(next(iter(self._handles)))

    def _handle(self, name: str, config: DatasetConfig, fingerprint: str) -> _Handle:
        key = (name, fingerprint)
        if (found := self._cached(key, config)) is not None:
            return found
        # One at a time, so that two views do not open a dataset twice.
        with self._opening:
            if (found := self._cached(key, config)) is not None:
                return found
            began = time.monotonic()
            dataset = open_dataset(
                config.place[0],
                options=config.store,
                fingerprint=fingerprint or None,
                source_options=config.source,
            )
            now = time.monotonic()
            fresh_s = max(_FRESH_S, _FRESH_FACTOR * (now - began))
            made = _Handle(config, dataset, float("inf") if fingerprint else now + fresh_s, users=1)
            with self._lock:
                if key in self._handles:
                    self._evict(key)
                self._handles[key] = made
                while len(self._handles) > _OPEN:
                    self._evict(next(iter(self._handles)))
            return made

    def _cached(self, key: tuple[str, str], config: DatasetConfig) -> _Handle | None:
        with self._lock:
            found = self._handles.get(key)
            is_good = found is not None and found.config == config
            if found is None or not is_good or time.monotonic() >= found.fresh_until:
                return None
            self._handles.move_to_end(key)
            found.users += 1
            return found

    def _evict(self, key: tuple[str, str]) -> None:
        handle = self._handles.pop(key)
        handle.is_kept = False
        self._close_unused(handle)

    @staticmethod
    def _close_unused(handle: _Handle) -> None:
        if not handle.is_kept and not handle.users:
            handle.dataset.close()


def _read_block(dataset: OpenDataset, block: int) -> pa.RecordBatch:
    size = int(dataset.block_raw_bytes(np.array([block], np.int64))[0])
    if size > MAX_BLOCK_BYTES:
        raise BadArgumentError(
            f"block {block} has {size} bytes, but a page reads blocks of at most "
            f"{MAX_BLOCK_BYTES}; `headrace cat` shows its samples",
            field="block",
        )
    return dataset.read_block(block)
