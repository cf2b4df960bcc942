"""The columns of packed rows: what they are made of, and how they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.errors import BadArgumentError
from headrace.server.layout.wire_columns import WireColumn
from headrace.v1 import shard_service_pb2 as pb

IGNORED_LABEL = -100
"""The label that loss functions ignore: PyTorch's default ``ignore_index``."""

_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """The columns of rows of documents.

    Attributes:
        length: Elements of a row.
        bos: The element before each document, or None.
        eos: The element after each document, or None.
        fill: The element that fills up a row.
        sources: The packed columns, the one of documents first.
        columns: All columns that can be requested.
        texts: The column of texts whose tokens are the documents; None without a tokenizer.
        tokenizer: Digest of the tokenizer; empty for none.
    """

    length: int
    bos: int | None
    eos: int | None
    fill: int
    sources: tuple[WireColumn, ...]
    columns: tuple[WireColumn, ...]
    texts: WireColumn | None = None
    tokenizer: str = ""

    @property
    def name(self) -> str:
        """The name of the column of documents."""
        return self.sources[0].name

    @property
    def marks(self) -> int:
        """Number of elements that are added around each document."""
        return (self.bos is not None) + (self.eos is not None)


def packed_columns(
    columns: Sequence[WireColumn],
    names: Sequence[str],
    *,
    length: int,
    bos: int | None,
    eos: int | None,
    fill: int,
    tokenizer: str = "",
) -> PackedColumns:
    """Return the columns of rows of documents.

    Args:
        columns: The columns of the dataset, as they are sent.
        names: The columns to pack, the one of documents first.
        length: Elements of a row.
        bos: The element before each document, or None.
        eos: The element after each document, or None.
        fill: The element that fills up a row.
        tokenizer: Digest of the tokenizer that turns a column of texts into documents; empty if the
            column holds documents.

    Raises:
        BadArgumentError: A column cannot be packed, cannot hold a mark or the filling, or appears
            twice.
    """
    by_name = {column.name: column for column in columns}
    kind, what = (pb.COLUMN_KIND_STRING, "text") if tokenizer else (pb.COLUMN_KIND_RAGGED, "lists")
    sources = []
    for name in names:
        source = by_name.get(name)
        if source is None or source.kind != kind:
            raise BadArgumentError(
                f"column {name!r} is packed, but the dataset serves no {what} of that name; store "
                "the lengths again with `headrace index --pack-length`",
                field="dataset",
            )
        sources.append(source)
    texts = sources[0] if tokenizer else None
    if texts is not None:
        sources = [token_column(texts)]
    main = sources[0]
    if main.dtype.kind not in "iu":
        raise BadArgumentError(
            f"column {main.name!r} contains {main.dtype.name}; only documents of integers can "
            "be packed",
            field="dataset",
        )
    most = (1 << 8 * main.dtype.itemsize - (main.dtype.kind == "i")) - 1
    for mark in (bos, eos, fill):
        if mark is not None and mark > most:
            raise BadArgumentError(
                f"column {main.name!r} of {main.dtype.name} cannot store {mark}, which marks or "
                "fills its rows",
                field="dataset",
            )
    made = [
        *(
            replace(source, kind=pb.COLUMN_KIND_TENSOR, item_shape=(length,), nullable=False)
            for source in sources
        ),
        *(_made(main.name, part, (length,)) for part in ("labels", "positions", "documents")),
        _made(main.name, "boundaries"),
        replace(_made(main.name, "samples"), element_type=pb.ELEMENT_TYPE_INT64, dtype=_INT64),
    ]
    twice = {column.name for column in made if column.name in by_name} - set(names)
    if twice:
        raise BadArgumentError(
            f"packing makes a column {min(twice)!r}, but the dataset already has one; rename it",
            field="dataset",
        )
    return PackedColumns(length, bos, eos, fill, tuple(sources), tuple(made), texts, tokenizer)


def token_column(column: WireColumn) -> WireColumn:
    """Return the column of tokens that a column of texts becomes."""
    return replace(
        column,
        kind=pb.COLUMN_KIND_RAGGED,
        element_type=pb.ELEMENT_TYPE_INT32,
        dtype=_INT32,
        logical_type="",
    )


def _made(name: str, part: str, shape: tuple[int, ...] = ()) -> WireColumn:
    kind = pb.COLUMN_KIND_TENSOR if shape else pb.COLUMN_KIND_RAGGED
    return WireColumn(f"{name}.{part}", kind, pb.ELEMENT_TYPE_INT32, _INT32, shape)
