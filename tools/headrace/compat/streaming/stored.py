"""Datasets as they lie in a store: what a `Stream` must know of them, and single samples."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch.utils.data import Dataset

from headrace.compat.streaming.encodings import UNSAFE, decoder_of
from headrace.errors import ManifestCorruptError, NotADatasetError
from headrace.storage import OpenDataset, SourceOptions, open_dataset, open_store
from headrace.storage.mds import ENCODING_KEY, MDS_INDEX_NAME

Sample = dict[str, Any]
_BLOCKS = 8
"""Decoded blocks that are kept for single samples."""


class Stored:
    """One dataset of any layout, opened on demand in each process.

    Attributes:
        url: Where it is.
        sample_count: Its samples.
        fingerprint: Identifies its content.
        encodings: The encoding of each column; empty for a column that has none.
        shard_samples: ``(shards,)``: samples per shard.
        shard_bytes: ``(shards,)``: raw bytes per shard.
    """

    def __init__(self, url: str, *, has_remote: bool, allow_unsafe_types: bool) -> None:
        """Open the dataset.

        Args:
            url: Where it is.
            has_remote: Whether the user gave it as remote, for messages.
            allow_unsafe_types: Whether columns may hold pickles.

        Raises:
            FileNotFoundError: There is no dataset at a remote URL.
            RuntimeError: There is none in a local folder, or it has no samples.
            ValueError: A column holds pickles; or (JSONDecodeError) its index is damaged.
        """
        self.url = url
        self._blocks: OrderedDict[int, list[Sample]] = OrderedDict()
        self._open: OpenDataset | None = None
        self._opened_in = 0
        try:
            found = self._opened()
        except ManifestCorruptError as error:
            raise json.JSONDecodeError(
                f"Index file at {url} is empty or corrupted ({error})", "", 0
            ) from error
        except NotADatasetError as error:
            if has_remote:
                raise FileNotFoundError(f"[Errno 2] No such file or directory: {error}") from error
            raise RuntimeError(
                f"No `remote` provided, but local file {url}/index.json does not exist ({error})"
            ) from error
        if not found.sample_count:
            raise RuntimeError(f"Stream contains no samples: {url}")
        self.sample_count, self.fingerprint = found.sample_count, found.fingerprint
        self.encodings = {
            field.name: (field.metadata or {}).get(ENCODING_KEY, b"").decode()
            for field in found.schema
        }
        self.shard_samples, self.shard_bytes = found.shard_sample_counts, found.shard_raw_bytes
        unsafe = [name for name, encoding in self.encodings.items() if encoding == UNSAFE]
        if unsafe and not allow_unsafe_types:
            raise ValueError(
                f"Column {unsafe[0]} of {url} contains an unsafe type: {UNSAFE}, which runs code "
                "of its writer when it is read; set `allow_unsafe_types=True` to read it"
            )

    def _opened(self) -> OpenDataset:
        if self._open is None or self._opened_in != os.getpid():
            # A worker that was forked must not share the connections.
            self._opened_in = os.getpid()
            self._open = open_dataset(self.url, source_options=SourceOptions(allow_pickle=True))
        return self._open

    def index_bytes(self) -> int:
        """Return the size of ``index.json``; 0 without one."""
        entry = open_store(self.url).entry(MDS_INDEX_NAME)
        return 0 if entry is None else entry.stored_bytes

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": None, "_blocks": OrderedDict()}

    def sample(self, number: int) -> Sample:
        """Return one sample; the blocks of the last few are kept.

        Raises:
            IndexError: There is no such sample.
        """
        if not 0 <= number < self.sample_count:
            raise IndexError(f"sample {number} of {self.url}, which has {self.sample_count}")
        blocks, offsets = self._opened().locate(np.array([number], np.int64))
        block = int(blocks[0])
        if block not in self._blocks:
            self._blocks[block] = self._read(block)
            if len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block)
        raw = self._blocks[block][int(offsets[0])]
        return decoded(raw, self.encodings)

    def _read(self, block: int) -> list[Sample]:
        found = self._opened().read_block(block)
        columns = {
            name: rows_of(column)
            for name, column in zip(found.schema.names, found.columns, strict=True)
        }
        return [{name: rows[at] for name, rows in columns.items()} for at in range(found.num_rows)]


def decoded(raw: Sample, encodings: dict[str, str]) -> Sample:
    """Return a sample as its encodings have it; a column that its shard lacks is left out."""
    sample = {}
    for name, value in raw.items():
        encoding = encodings.get(name, "")
        decode = decoder_of(encoding)
        if encoding and value is None:
            continue
        sample[name] = value if decode is None or value is None else decode(value)
    return sample


def rows_of(column: pa.Array[Any]) -> list[Any]:
    """Return the values of a column: NumPy's numbers and arrays, `str`, `bytes`, None."""
    kind = column.type
    if isinstance(column, pa.FixedShapeTensorArray):
        return list(column.to_numpy_ndarray())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if not column.null_count:
            return list(column.to_numpy(zero_copy_only=False))
        filled = column.fill_null(0).to_numpy(zero_copy_only=False)
        return [
            value if valid else None
            for value, valid in zip(filled, column.is_valid().to_pylist(), strict=True)
        ]
    is_list = isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    if is_list and pa.types.is_primitive(kind.value_type):
        return [
            None if row.values is None else row.values.to_numpy(zero_copy_only=False)
            for row in column
        ]
    if isinstance(column, pa.StructArray) and {"data", "shape"} <= set(kind.names):
        return _shaped(column)
    return column.to_pylist()


def _shaped(column: pa.StructArray) -> list[Any]:
    fields = {field.name: rows_of(column.field(field.name)) for field in column.type}
    return [
        None if not valid else shaped(*(fields[name][at] for name in fields))
        for at, valid in enumerate(column.is_valid().to_pylist())
    ]


def shaped(data: Any, shape: Any, dtype: str | None = None) -> NDArray[Any]:
    """Return an array of its flat elements, its shape, and its type where elements are bytes."""
    flat = np.frombuffer(data, dtype) if dtype else np.asarray(data)
    return flat.reshape([int(axis) for axis in shape])


class Array:
    """A sequence that can be indexed by numbers, slices, lists and arrays, as MosaicML's can."""

    @property
    def size(self) -> int:
        """The number of items."""
        raise NotImplementedError

    def get_item(self, sample_id: int) -> Any:
        """Return an item by its number, >= 0."""
        raise NotImplementedError

    def __getitem__(self, at: Any) -> Any:
        """Return the item of a number, or a list of items.

        Raises:
            IndexError: There is no such item.
            TypeError: It is no index.
        """
        if isinstance(at, int | np.integer):
            number = int(at) + self.size if at < 0 else int(at)
            if not 0 <= number < self.size:
                raise IndexError(f"index {at} found; expected [-{self.size}, {self.size})")
            return self.get_item(number)
        if isinstance(at, slice):
            return [self[each] for each in _numbers(at, self.size)]
        if isinstance(at, list | np.ndarray):
            return [self[each] for each in at]
        raise TypeError(f"an index of type {type(at).__name__} found; expected numbers or a slice")


def _numbers(at: slice, size: int) -> Iterator[int]:
    yield from range(*at.indices(size))


class LocalDataset(Array, Dataset[Any]):
    """The samples of a dataset by their numbers, without a server.

    Attributes:
        local: The folder or URL.
        split: The part of it; may be empty.
        num_samples: The number of samples.
    """

    def __init__(self, local: str, split: str | None = None) -> None:
        """Open the dataset.

        Args:
            local: A folder or URL of any layout that headrace reads.
            split: A folder in it; None for none.

        Raises:
            RuntimeError: There is no dataset.
            ValueError: A column holds pickles, or the index is damaged.
        """
        self.local, self.split = local, split or ""
        self._stored = Stored(joined(local, self.split), has_remote=False, allow_unsafe_types=False)
        self.num_samples = self._stored.sample_count

    def __len__(self) -> int:
        return self.num_samples

    @property
    def size(self) -> int:
        return self.num_samples

    def get_item(self, sample_id: int) -> Sample:
        return self._stored.sample(sample_id)


def joined(root: str, split: str) -> str:
    """Return the URL of a split; a local path without ``~``."""
    url = f"{root.rstrip('/')}/{split}" if split else root
    return url if "://" in url else str(Path(url).expanduser())
