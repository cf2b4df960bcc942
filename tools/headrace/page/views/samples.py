"""Views of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from starlette.responses import Response

from headrace.cli.show.image_sides import image_sides
from headrace.errors import BadArgumentError
from headrace.page.data.media import File
from headrace.page.data.partial_reads import matching
from headrace.page.data.samples import Box, boxes_of, column_named, file_of, guess_column, rows_of
from headrace.page.data.values import (
    Column,
    PageValue,
    array_of,
    columns_of,
    pixels_of,
    text_of_tokens,
)
from headrace.page.guard.middleware import FILE_POLICY
from headrace.page.site import ViewRequest
from headrace.page.views.query import MAX_IDS, column_at, filter_of, open_requested, sample_ids_of
from headrace.storage import OpenDataset, Tokenizer

_PAGE_SIZE: Final = 30
_OFFERS: Final = 40
"""Class names of a column that complete a filter."""
_MAX_COLUMNS: Final = 40


@dataclass(frozen=True, slots=True)
class _Cell:
    """A value to show.

    Attributes:
        number: The number of its column.
        shown: The value as text.
        width: The width of an image in its own pixels; 0 if unknown.
        height: The height of an image.
        boxes: The boxes over the image.
        mask: The number of the column of the mask over it, or None.
    """

    number: int
    shown: PageValue
    width: int = 0
    height: int = 0
    boxes: Sequence[Box] = ()
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    """How to show samples.

    Attributes:
        columns: All columns.
        mask: The name of the column of masks, or an empty text.
        boxes: The name of the column of boxes, or an empty text.
        form: The meaning of a box's numbers.
        tokens: The name of the column of token ids to show as text, or an empty text.
        tokenizer: The name of the tokenizer for them, or an empty text.
        texts: The tokenizer.
    """

    columns: Sequence[Column]
    mask: str
    boxes: str
    form: str
    tokens: str = ""
    tokenizer: str = ""
    texts: Tokenizer | None = None
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numbers.update({one.name: number for number, one in enumerate(self.columns)})


def samples(request: ViewRequest) -> Response:
    """Show a page of samples: from an id on, by ids, at random, or those that a filter keeps."""
    with open_requested(request) as opened:
        columns = columns_of(opened.schema)
        look, problem = _look(request, columns), ""
        try:
            ids, next_id = _chosen_ids(request, opened)
            rows = rows_of(request.site.library, opened, ids)
        except BadArgumentError as error:
            if error.metadata.get("field") not in {"where", "ids", "id"}:
                raise
            ids, rows, next_id, problem = [], [], None, error.message
        shown, pinned = _shown_columns(request, columns)
        cards = [
            (sample, _cells(look, shown, row, is_whole=False))
            for sample, row in zip(ids, rows, strict=True)
        ]
        return request.html(
            "samples.html",
            status=400 if problem else 200,
            cards=cards,
            look=look,
            shown={one.name for one in shown},
            heads=shown,
            pinned=pinned,
            problem=problem,
            offers=[
                (one.name, str(one.type)[:40], (one.classes or ())[:_OFFERS]) for one in columns
            ],
            hint=next((f"{one.name} = …" for one in columns if _is_comparable(one.type)), ""),
            has_images=any(cell.shown.kind == "image" for _, cells in cards[:1] for cell in cells),
            tokenizers=list(request.site.tokenizers),
            count=opened.sample_count,
            fingerprint=opened.fingerprint,
            next_id=next_id,
            at=request.number("at", 0),
            page=_page_size(request),
        )


def _shown_columns(request: ViewRequest, columns: Sequence[Column]) -> tuple[list[Column], int]:
    """Return the columns to show, pinned ones first, and how many are pinned."""
    chosen = [one for at, one in enumerate(columns) if f"c{at}" in request.query] or columns
    pins = {one.name for at, one in enumerate(columns) if f"p{at}" in request.query}
    shown = sorted(chosen[:_MAX_COLUMNS], key=lambda one: one.name not in pins)
    return shown, sum(one.name in pins for one in shown)


def sample(request: ViewRequest) -> Response:
    """Show one sample in detail."""
    with open_requested(request) as opened:
        (sample_id,) = sample_ids_of(request.path["id"])[:1]
        look = _look(request, columns_of(opened.schema))
        (row,) = rows_of(request.site.library, opened, [sample_id])
        blocks, offsets = opened.locate(np.array([sample_id], np.int64))
        ends = np.cumsum(opened.shard_sample_counts)
        return request.html(
            "sample.html",
            sample_id=sample_id,
            cells=_cells(look, look.columns, row, is_whole=True),
            look=look,
            count=opened.sample_count,
            fingerprint=opened.fingerprint,
            place_of=(
                int(np.searchsorted(ends, sample_id, side="right")),
                int(blocks[0]),
                int(offsets[0]),
            ),
        )


def sample_file(request: ViewRequest) -> Response:
    """Send a value as a file of a type that cannot run code."""
    with open_requested(request) as opened:
        _, column = column_at(request, columns_of(opened.schema))
        (row,) = rows_of(request.site.library, opened, sample_ids_of(request.path["id"])[:1])
        found = file_of(column, row, as_mask=request.query.get("as") == "mask")
    headers = {"content-security-policy": FILE_POLICY, "content-disposition": "inline"}
    if isinstance(found, File):
        if request.query.get("v"):
            # A version never changes. Only this browser may cache it.
            headers["cache-control"] = "private, max-age=600"
        return Response(found.content, media_type=found.media, headers=headers)
    return Response(f"{found}\n", 415, media_type="text/plain", headers=headers)


def _is_comparable(kind: pa.DataType) -> bool:
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return not (is_bytes or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _page_size(request: ViewRequest) -> int:
    return request.number("n", _PAGE_SIZE, low=1, high=MAX_IDS)


def _chosen_ids(request: ViewRequest, opened: OpenDataset) -> tuple[list[int], int | None]:
    """Return the ids of a page, and the first id of the next page, or None."""
    count, most = opened.sample_count, _page_size(request)
    kept = filter_of(request, opened)
    if request.query["ids"].strip():
        ids = sample_ids_of(request.query["ids"])
        rows = [] if kept is None else rows_of(request.site.library, opened, ids)
        return [
            one for one, row in zip(ids, rows, strict=True) if kept.mask(row)[0]
        ] if kept else ids, None
    if "random" in request.query and count:
        random = np.random.default_rng(request.number("random", 0))
        return random.integers(0, count, min(most, count)).tolist(), None
    first = request.number("at", 0)
    if kept is not None:
        ids, ended = matching(request.site.library, opened, kept, first=first, max_count=most)
        return ids, ended if ended < count else None
    last = min(first + most, count)
    return list(range(first, last)), last if last < count else None


def _look(request: ViewRequest, columns: Sequence[Column]) -> _Look:
    """Return how to show samples, according to the query or the names of columns."""

    def column_choice(key: str, words: Sequence[str]) -> str:
        if key not in request.query:
            return guess_column(columns, words)
        name = request.query[key]
        return column_named(columns, name).name if name else ""

    known = request.site.tokenizers
    name = request.query.get("tokenizer", next(iter(known), ""))
    if name and name not in known:
        raise BadArgumentError(f"there is no tokenizer {name[:40]!r} here", field="tokenizer")
    return _Look(
        columns,
        column_choice("mask", ("mask", "segment")),
        column_choice("boxes", ("bbox", "boxes")),
        "xywh" if request.query.get("form") == "xywh" else "xyxy",
        column_choice("tokens", ("token", "input_ids")),
        name,
        known.get(name),
    )


def _cells(
    look: _Look, columns: Sequence[Column], row: pa.RecordBatch, *, is_whole: bool
) -> list[_Cell]:
    """Return the cells of a sample, with the mask and the boxes over its first image."""
    cells = [_cell(look, one, row, is_whole=is_whole) for one in columns]
    for at, cell in enumerate(cells):
        if cell.shown.kind == "image" and cell.shown.column != look.mask:
            cells[at] = _with_overlays(look, cell, row)
            break
    return cells


def _cell(look: _Look, column: Column, row: pa.RecordBatch, *, is_whole: bool) -> _Cell:
    scalar: Any = row.column(column.name)[0]
    shown, number = column.shown(scalar, is_whole=is_whole), look.numbers[column.name]
    if column.name == look.tokens and look.texts is not None:
        shown = text_of_tokens(scalar, shown, look.texts, is_whole=is_whole)
    if shown.kind != "image":
        return _Cell(number, shown)
    if not column.is_raster:
        return _Cell(number, shown, *(image_sides(scalar.as_py()) or (0, 0)))
    values = array_of(scalar, column.shape)
    if values is None:
        return _Cell(number, PageValue(column.name, "bytes", shown.text, "it contains nulls"))
    if is_whole:
        shown = PageValue(column.name, "image", shown.text, pixels_of(values)[1])
    height, width = column.shape[:2]
    return _Cell(number, shown, width, height)


def _with_overlays(look: _Look, cell: _Cell, row: pa.RecordBatch) -> _Cell:
    boxes: Sequence[Box] = ()
    if look.boxes and cell.width:
        boxes = boxes_of(column_named(look.columns, look.boxes), row, form=look.form)
    has_mask = look.mask and row.column(look.mask)[0].is_valid
    return replace(cell, boxes=boxes, mask=look.numbers[look.mask] if has_mask else None)
