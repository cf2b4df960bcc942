"""Options for storing columns and writing files, for every kind of conversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import pyarrow as pa

from headrace.arguments import (
    instance_or_none,
    mapping_or_none,
    text,
    texts,
    whole,
    whole_or_none,
)
from headrace.converter.tasks.sinks import Format, Writing, mds_compression
from headrace.errors import BadArgumentError
from headrace.storage import DEFAULT_BLOCK_BYTES, DEFAULT_SHARD_BYTES, check_blocks
from headrace.storage.mds import DEFAULT_HASHES, check_writing

Shape: TypeAlias = tuple[int, ...] | Literal["ragged"]

_BYTES_LIMIT = 1 << 42
_LEVEL_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to store columns, and how to write their files.

    Attributes:
        types: Types to cast stored columns to, such as ``{"label": "int32", "image": "uint8"}``;
            for an array, the type of its innermost items. A value that does not fit is an error.
        shapes: Tensor shapes by stored column, such as ``{"image": (28, 28)}``, row-major; or
            ``"ragged"`` for lists that must stay lists.
        formats: The formats of stored columns of bytes, such as ``{"image": "jpeg"}``, which
            readers get with the column.
        classes: Class names for stored columns of integers, such as ``{"label": ["cat", "dog"]}``,
            where 0 is a cat. Values are in [0, names), or -1 for none. With ``mode="append"`` the
            dataset's own names must come first, in their order.
        compression: The compression of each block: ``lz4``, ``zstd`` or ``none``. In ``mds``, of
            each shard: ``none``, ``br``, ``bz2``, ``gz``, ``snappy`` or ``zstd``. `None` is
            ``lz4``, in ``mds`` and for images whose own formats compress ``none``.
        compression_level: The level of the compression; `None` is its default.
        hashes: Hashes of each file in ``mds``, by their names for MosaicML Streaming's
            ``validate_hash``; `None` is ``["xxh3_64"]``, and ``[]`` is none, in which case damage
            is not noticed.
        shard_bytes: Maximum raw bytes of a shard, unless a single sample has more.
        block_bytes: Approximate raw bytes of a block; not for ``mds``. All blocks of a shard except
            the last have the same number of samples, and at most four times these bytes plus the
            largest sample. `None` is 1 MiB, or ``shard_bytes`` if that is less.
        lengths: A stored column of lists of numbers whose lengths are stored too, so that
            ``headrace index --pack-length`` and ``deal="balanced"`` need not read the data; not for
            ``mds``.

    Raises:
        BadArgumentError: A value has another type, or is out of range.
    """

    types: Mapping[str, str | pa.DataType] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    compression: str | None = None
    compression_level: int | None = None
    hashes: Sequence[str] | None = None
    shard_bytes: int = DEFAULT_SHARD_BYTES
    block_bytes: int | None = None
    lengths: str | None = None

    def __post_init__(self) -> None:
        """Refuse options that are invalid for any format."""
        for name in ("types", "shapes", "formats", "classes"):
            said = getattr(self, name)
            mapping_or_none(name, said, wanted="a mapping from column names")
            object.__setattr__(self, name, said or {})
        for column, names in self.classes.items():
            texts(f"classes[{column!r}]", names, wanted="a list of its class names")
        if self.compression is not None:
            text("compression", self.compression, wanted="the name of a compression, or None")
        level = self.compression_level
        whole_or_none("compression_level", level, low=-_LEVEL_LIMIT, high=_LEVEL_LIMIT)
        if self.lengths is not None:
            text("lengths", self.lengths, wanted="the name of a column of lists, or None")
        if self.hashes is not None:
            texts("hashes", self.hashes, wanted="a list of names of hashes, or None")
        whole("shard_bytes", self.shard_bytes, low=1, high=_BYTES_LIMIT)
        whole_or_none("block_bytes", self.block_bytes, low=1, high=_BYTES_LIMIT)

    def writing(self, file_format: Format) -> Writing:
        """Return how to write shards of a format, with its defaults.

        Raises:
            BadArgumentError: There is no such format, or it does not support the options.
        """
        if file_format not in get_args(Format):
            wanted = ", ".join(get_args(Format))
            raise BadArgumentError(
                f"format is {file_format!r}, expected one of {wanted}", field="format"
            )
        return self._mds() if file_format == "mds" else self._arrow()

    def _mds(self) -> Writing:
        if self.lengths is not None:
            raise BadArgumentError(
                f"lengths is {self.lengths!r}, which is for format='arrow'; leave it out, since "
                "`headrace index --pack-length` reads the lengths of MDS",
                field="lengths",
            )
        stored = None if self.compression in {None, "none"} else self.compression
        hashes = DEFAULT_HASHES if self.hashes is None else tuple(self.hashes)
        writing = Writing(
            "mds", stored, self.compression_level, self.shard_bytes, DEFAULT_BLOCK_BYTES, hashes
        )
        check_writing(
            compression=mds_compression(writing), hashes=hashes, size_limit=self.shard_bytes
        )
        return writing

    def _arrow(self) -> Writing:
        if self.hashes:
            raise BadArgumentError(
                f"hashes is {list(self.hashes)!r}, which is for format='mds'; leave it out, since "
                "blocks of 'arrow' always have checksums",
                field="hashes",
            )
        compression = self.compression or "lz4"
        in_block = self.block_bytes or min(DEFAULT_BLOCK_BYTES, self.shard_bytes)
        check_blocks(compression, in_block, self.compression_level)
        if self.shard_bytes < in_block:
            raise BadArgumentError(
                f"shard_bytes is {self.shard_bytes}, expected at least block_bytes, {in_block}; "
                "leave block_bytes out to choose it automatically",
                field="shard_bytes",
            )
        return Writing(
            "arrow",
            compression,
            self.compression_level,
            self.shard_bytes,
            in_block,
            lengths=self.lengths,
        )


def write_options_of(write: WriteOptions | None) -> WriteOptions:
    """Return the options for an argument; `None` means the defaults.

    Raises:
        BadArgumentError: The argument has another type.
    """
    wanted = "WriteOptions(compression='zstd', …), or None"
    return instance_or_none("write", write, WriteOptions, wanted=wanted) or WriteOptions()
