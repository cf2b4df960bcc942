"""The stored lengths of the samples of a dataset, opened when they are asked for."""

from __future__ import annotations

import threading
from functools import cached_property

from headrace.errors import BadArgumentError
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.storage import PackingPointer, Store, StoredLengths, open_store, read_packing


class LengthTables:
    """The tables of lengths beside a dataset. Safe for several threads.

    Args:
        name: The dataset's name.
        fingerprint: Its version.
        config: The settings with which it was opened, if known.
    """

    def __init__(self, name: str, fingerprint: str, config: DatasetConfig | None) -> None:
        self._name = name
        self._fingerprint = fingerprint
        self._config = config
        self._lock = threading.Lock()
        self._lengths: dict[str, StoredLengths] = {}

    @cached_property
    def store(self) -> Store | None:
        """The store of the dataset; None if its settings are not known."""
        config = self._config
        return None if config is None else open_store(config.place[0], options=config.store)

    def pointer(self, fingerprint: str = "", *, cost: str = "") -> PackingPointer | None:
        """Return what is stored for a version, by default the dataset's own; None for nothing.

        Args:
            fingerprint: The version; empty for the dataset's own.
            cost: The column of the costs; empty for lengths.

        Raises:
            HeadraceError: The store cannot be read.
        """
        if self.store is None:
            return None
        return read_packing(self.store, fingerprint or self._fingerprint, cost=cost)

    def lengths(self, *, field: str, cost: str = "") -> StoredLengths:
        """Return the lengths of the dataset's samples, or their costs.

        Args:
            field: What needs them, for the error.
            cost: The column of the costs; empty for lengths.

        Raises:
            BadArgumentError: They are not stored.
            HeadraceError: They cannot be read.
        """
        with self._lock:
            if cost not in self._lengths:
                pointer = self.pointer(cost=cost)
                if pointer is None or self.store is None:
                    what, how = (
                        (f"costs of column {cost!r:.100}", "--cost COLUMN`")
                        if cost
                        else ("lengths", "--pack-length L`, with any L")
                    )
                    raise BadArgumentError(
                        f"no {what} are stored for {self._name!r}, which {field} needs; store them "
                        f"with `headrace index URL {how}",
                        field=field,
                    )
                self._lengths[cost] = StoredLengths(self.store, pointer)
            return self._lengths[cost]

    def close(self) -> None:
        """Close the connections to the store."""
        if "store" in self.__dict__ and self.store is not None:
            self.store.close()
