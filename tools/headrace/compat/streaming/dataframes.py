"""MosaicML Streaming's conversion of Spark DataFrames, by headrace's converter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.compat.streaming.encodings import encoder_of
from headrace.compat.streaming.units import bytes_of
from headrace.storage.mds import ENCODING_KEY
from headrace.storage.mds.arrays import ArrayType
from headrace.storage.mds.encoding import ValueKind, parse_encoding
from headrace.storage.mds.fields import arrow_field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KNOWN = {"out", "columns", "compression", "hashes", "size_limit", "keep_local", "exist_ok"}
_NO_EFFECT = {"progress_bar", "max_workers", "retry"}
_TEXTS = {"str_int", "str_decimal"}


def dataframe_to_mds(
    dataframe: DataFrame,
    merge_index: bool = True,  # noqa: FBT001, FBT002 - theirs
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[Mapping[str, Any]]] | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
) -> tuple[str, str]:
    """Write a DataFrame as a dataset of MosaicML's format, which exists once all tasks have ended.

    Args:
        dataframe: The rows.
        merge_index: Refused if false: there is one index, written once, at the end.
        mds_kwargs: ``out`` and, as for `MDSWriter`, ``columns``, ``compression`` (``zstd`` by
            default), ``hashes``, ``size_limit``, ``exist_ok``. Without ``columns``, encodings
            follow from the types of the DataFrame. Of a pair in ``out``, the second is written.
        udf_iterable: Called with a pandas frame; yields samples of ``columns``.
        udf_kwargs: Its other arguments.

    Returns:
        Where the dataset is, as a local and a remote path of which one may be empty.

    Raises:
        ValueError: An argument is missing or not supported.
        HeadraceError: The conversion failed; see `headrace.converter.write_shards`.
    """
    given = dict(mds_kwargs or {})
    unknown = sorted(set(given) - _KNOWN - _NO_EFFECT)
    if unknown or "out" not in given:
        raise ValueError(f"mds_kwargs has {sorted(given)}; expected `out`, and some of {_KNOWN}")
    if not merge_index:
        raise ValueError(
            "merge_index is False, but headrace writes one index at the end; expected True"
        )
    if udf_iterable is not None and "columns" not in given:
        raise ValueError("`columns` is needed in mds_kwargs, as udf_iterable decides what they are")
    local, remote = _places(given["out"], keeps=bool(given.get("keep_local")))
    from headrace.converter import Function, WriteOptions, write_shards  # noqa: PLC0415 - Spark

    compression, _, level = str(given.get("compression", "zstd") or "none").partition(":")
    function = None
    if "columns" in given:
        columns = dict(given["columns"])
        if udf_iterable is None:
            _check_names(dataframe.columns, columns)
        make = None if udf_iterable is None else partial(udf_iterable, **dict(udf_kwargs or {}))
        schema = pa.schema([_field(name, encoding) for name, encoding in sorted(columns.items())])
        function = Function(partial(_batches, make=make, schema=schema), schema)
    write_shards(
        dataframe,
        remote or local,
        function=function,
        format="mds",
        mode="overwrite" if given.get("exist_ok") else "error",
        write=WriteOptions(
            compression=compression,
            compression_level=int(level) if level else None,
            hashes=given.get("hashes") or None,
            shard_bytes=bytes_of(given.get("size_limit") or 1 << 26),
        ),
    )
    return local, remote


def _places(out: str | tuple[str, str], *, keeps: bool) -> tuple[str, str]:
    if not isinstance(out, str):
        if keeps:
            raise ValueError(
                f"keep_local is True and out is {out}, but executors upload directly; expected "
                "keep_local=False, or one path that all of them share"
            )
        return out
    return ("", out) if "://" in out else (out, "")


def _check_names(found: list[str], columns: Mapping[str, str]) -> None:
    missing = sorted(set(columns) - set(found))
    if missing:
        raise ValueError(f"{missing[0]} is not a column of input dataframe: {found}")


def _field(name: str, text: str) -> pa.Field[Any]:
    encoder_of(text)  # refuses what is no encoding
    encoding = parse_encoding(text)
    if encoding.kind is ValueKind.ARRAY and encoding.dtype is None:
        raise ValueError(
            f"column {name!r} has the encoding {text!r}; expected one with a type, such as "
            "ndarray:float32 for one axis or ndarray:float32:3,4 for more"
        )
    return arrow_field(name, encoding, arrays=ArrayType(encoding.dtype or np.dtype("u1"), 1))


def _batches(
    batches: Iterator[pa.RecordBatch],
    *,
    make: Callable[[Any], Iterable[Mapping[str, Any]]] | None,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        samples = list(batch.to_pylist() if make is None else make(batch.to_pandas()))
        if not samples:
            continue
        arrays = [_column([sample[field.name] for sample in samples], field) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(values: list[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    text, kind = (field.metadata or {})[ENCODING_KEY].decode(), field.type
    if isinstance(kind, pa.FixedShapeTensorType):
        dtype = kind.value_type.to_pandas_dtype()
        whole = np.stack([np.asarray(value, dtype).reshape(kind.shape) for value in values])
        tensors: pa.Array[Any] = pa.FixedShapeTensorArray.from_numpy_ndarray(whole)
        return tensors
    encode = encoder_of(text)
    if text in _TEXTS:
        values = [str(value) for value in values]
    elif text == "json":
        values = [encode(value).decode() for value in values]
    elif kind == pa.binary():
        is_bytes = [isinstance(value, bytes | bytearray) for value in values]
        pairs = zip(values, is_bytes, strict=True)
        values = [bytes(value) if ready else encode(value) for value, ready in pairs]
    column: pa.Array[Any] = pa.array(values, kind)
    return column
