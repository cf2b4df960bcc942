"""Read folders written by ``save_to_disk`` of Hugging Face's datasets, with Arrow alone.

Such a folder contains Arrow files (streams, or files with a footer), ``state.json`` with their
names and ``dataset_info.json`` with the meaning of the columns; a ``DatasetDict`` is a folder with
such folders and ``dataset_dict.json``.

| feature | column |
| --- | --- |
| ``Image``, ``Audio`` | binary: the encoded file |
| ``Array2D`` … ``Array5D`` of a whole shape | tensor |
| lists of numbers | list, or tensor where all have one length |
| ``ClassLabel``, and lists of them | int64, with the names as the column's classes; -1 is none |
| everything else | its Arrow type |
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadArgumentError, NotADatasetError, ObjectNotFoundError
from headrace.storage import (
    SHAPE_AUTO,
    SHAPE_KEY,
    Store,
    StoreOptions,
    classes_in_features,
    holds_classes,
    open_store,
    with_classes,
)

if TYPE_CHECKING:
    # pyarrow's stubs have these generic, pyarrow itself has not.
    Array = pa.Array[Any]
    Field = pa.Field[Any]

STATE_NAME = "state.json"
SPLITS_NAME = "dataset_dict.json"
_INFO_NAME = "dataset_info.json"
_MAGIC = b"ARROW1"
_HEAD_BYTES = 4 << 20  # a schema has a few KiB, with class names some hundred
_FILES = ("Image", "Audio")


def find_splits(url: str, *, options: StoreOptions) -> Mapping[str, str]:
    """Return the URL of each split, ``{"": url}`` without splits, or an empty mapping.

    Raises:
        StoreRefusedError: The store refuses.
        StoreUnavailableError: The store cannot be reached.
    """
    with contextlib.closing(open_store(url, options=options)) as store:
        splits = _read_json(store, SPLITS_NAME)
        if splits is not None:
            return {str(name): f"{url.rstrip('/')}/{name}" for name in splits.get("splits", ())}
        state = _read_json(store, STATE_NAME)
        return {"": url} if state is not None and "_data_files" in state else {}


@dataclass(frozen=True, slots=True)
class HuggingFacePieces:
    """The files of one dataset, each a piece, since Arrow streams can only be read from the start.

    Attributes:
        url: The URL of the folder.
        names: The names of its files.
        schema: The schema of the yielded batches.
        files: Columns of encoded files, whose bytes are taken out of their struct.
        raw_bytes: The raw bytes of the files.
        options: The options of the store.
    """

    url: str
    names: tuple[str, ...]
    schema: pa.Schema
    files: frozenset[str]
    raw_bytes: int
    options: StoreOptions = field(repr=False)

    @property
    def count(self) -> int:
        return len(self.names)

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        name = self.names[piece]
        with contextlib.closing(open_store(self.url, options=self.options)) as store:
            first = 0
            for batch in _batches(store, name):
                place = f"{self.url}/{name}"
                columns = [self._column(batch, column, place, first) for column in self.schema]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
                first += batch.num_rows

    def _column(self, batch: pa.RecordBatch, wanted: Field, place: str, first: int) -> Array:
        column: Array = batch.column(wanted.name)
        if wanted.name in self.files:
            return _file_bytes(column, wanted, f"{place}, sample {first}")
        if isinstance(wanted.type, pa.FixedShapeTensorType):
            return _tensors(column, wanted, place, first)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        return column if column.type == wanted.type else column.cast(wanted.type)


def hugging_face_pieces(url: str, *, options: StoreOptions) -> HuggingFacePieces:
    """Describe the dataset in a folder; reads its two small files and one schema.

    Raises:
        NotADatasetError: There is no dataset, or one without files.
        BadArgumentError: Its rows are selected by an index, which its files do not contain.
    """
    with contextlib.closing(open_store(url, options=options)) as store:
        state = _read_json(store, STATE_NAME) or {}
        names = tuple(str(file["filename"]) for file in state.get("_data_files", ()))
        if not names:
            raise NotADatasetError(
                f"{url} contains no Hugging Face dataset: {STATE_NAME} names no files; expected a "
                "folder written by save_to_disk",
                url=url,
            )
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise BadArgumentError(
                f"{url} selects rows with an index beside its files; write it again with "
                "dataset.flatten_indices().save_to_disk(...)",
                field="SRC",
            )
        stored = _read_schema(store, names[0])
        raw_bytes = sum(entry.stored_bytes for entry in store.list_entries() if entry.name in names)
        features = (_read_json(store, _INFO_NAME) or {}).get("features") or {}
    fields = [_field(column, features.get(column.name)) for column in stored]
    return HuggingFacePieces(
        url=url,
        names=names,
        schema=_with_classes(pa.schema(fields), features),
        files=frozenset(name for name in features if _kind(features[name]) in _FILES),
        raw_bytes=raw_bytes,
        options=options,
    )


def _field(stored: Field, feature: object) -> Field:
    known: Mapping[str, Any] = feature if isinstance(feature, dict) else {}
    kind = _kind(feature)
    if kind in _FILES:
        return pa.field(stored.name, pa.binary())
    shape = known.get("shape")
    if kind.startswith("Array") and shape and all(isinstance(side, int) for side in shape):
        return pa.field(
            stored.name, pa.fixed_shape_tensor(pa.from_numpy_dtype(known["dtype"]), shape)
        )
    plain = _plain_type(stored.type)
    if isinstance(plain, pa.ListType | pa.FixedSizeListType):
        return _list_field(stored.name, plain)
    return pa.field(stored.name, plain)


def _with_classes(schema: pa.Schema, features: object) -> pa.Schema:
    for name, names in classes_in_features(features).items():
        at = schema.get_field_index(name)
        if at >= 0 and holds_classes(schema.field(at).type):
            schema = schema.set(at, with_classes(schema.field(at), names))
    return schema


def _list_field(name: str, kind: pa.ListType[Any] | pa.FixedSizeListType[Any, Any]) -> Field:
    """Return the field of lists; lists of numbers have no nulls, so that they can be tensors."""
    if not pa.types.is_primitive(kind.value_type):
        return pa.field(name, kind)
    item = pa.field("item", kind.value_type, nullable=False)
    if isinstance(kind, pa.FixedSizeListType):
        return pa.field(name, pa.list_(item, kind.list_size))
    return pa.field(name, pa.list_(item), metadata={SHAPE_KEY: SHAPE_AUTO})


def _kind(feature: object) -> str:
    return str(feature.get("_type", "")) if isinstance(feature, dict) else ""


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that shards can store: no dictionaries, views or extensions."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return _plain_type(kind.value_type)
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    return kind


def _file_bytes(column: Array, wanted: Field, place: str) -> Array:
    """Return the encoded files of an ``Image`` or ``Audio`` column."""
    if not isinstance(column, pa.StructArray):
        return column.cast(wanted.type)
    files: Array = pc.struct_field(column, [0])
    if files.null_count > column.null_count:
        raise BadArgumentError(
            f"column {wanted.name!r} of {place} or a later sample has a path but no bytes; write "
            "the dataset again with save_to_disk, which stores the files",
            field=wanted.name,
        )
    return files.cast(wanted.type)


def _tensors(column: Array, wanted: Field, place: str, first: int) -> Array:
    kind: Any = wanted.type
    values: Any = column.storage if isinstance(column, pa.ExtensionArray) else column
    for axis, side in enumerate(kind.shape):
        lengths = pc.fill_null(pc.list_value_length(values), -1)
        wrong = np.flatnonzero(lengths.to_numpy(zero_copy_only=False) != side)
        if len(wrong):
            found = lengths[int(wrong[0])].as_py()
            sample = int(wrong[0]) // math.prod(kind.shape[:axis])
            raise BadArgumentError(
                f"column {wanted.name!r} of {place}, sample {first + sample}, has "
                f"{'null' if found < 0 else f'a length of {found}'} on axis {axis}, but its "
                f"feature says the shape {tuple(kind.shape)}; give it a feature of that shape, "
                "or of lists",
                field=wanted.name,
            )
        values = values.flatten()
    if values.null_count:
        raise BadArgumentError(
            f"column {wanted.name!r} of {place}, sample {first} or a later one, holds a "
            "null inside its array; fill it",
            field=wanted.name,
        )
    flat = values.cast(kind.value_type)
    lists: Array = pa.FixedSizeListArray.from_arrays(flat, type=kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, lists)


def _batches(store: Store, name: str) -> Iterator[pa.RecordBatch]:
    local = Path(store.url, name)
    source: Any = (
        pa.memory_map(str(local)) if local.is_file() else pa.BufferReader(store.read(name))
    )
    with source:
        is_file = bytes(source.read(len(_MAGIC))) == _MAGIC
        source.seek(0)
        if is_file:
            file = pa.ipc.open_file(source)
            yield from (file.get_batch(index) for index in range(file.num_record_batches))
        else:
            yield from pa.ipc.open_stream(source)


def _read_schema(store: Store, name: str) -> pa.Schema:
    head = store.read(name, offset=0, length=_HEAD_BYTES)
    # A file with a footer is a stream after eight bytes.
    start = 8 if head.startswith(_MAGIC) else 0
    return pa.ipc.read_schema(pa.py_buffer(head[start:]))


def _read_json(store: Store, name: str) -> dict[str, Any] | None:
    try:
        content = json.loads(store.read(name))
    except (ObjectNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
