"""The layout of batches in slots: what batches of one form share, and what each adds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from headrace.client.transports.ring.memory import Mapping
from headrace.client.wire.assembler import BatchEvent, PayloadArray
from headrace.client.wire.payload_layout import ColumnView
from headrace.payload import SAMPLE_ID_COLUMN, place_buffers
from headrace.v1 import shard_service_pb2 as pb

_TENSOR = pb.COLUMN_KIND_TENSOR
_OFFSET_SHIFT = 3
"""Offsets have 8 bytes, and start at multiples of 8."""

_new = tuple.__new__
_parsed = pb.ReadBatchesResponse.FromString


class ColumnParts(NamedTuple):
    """The arrays of a column; see `ColumnView`."""

    values: PayloadArray
    offsets: PayloadArray | None
    valid: PayloadArray | None


class SlotLayout(NamedTuple):
    """Where the buffers of a batch lie in its payload.

    Attributes:
        form: The form of the batch.
        payload_bytes: Bytes of the payload.
        lengths: Bytes of each buffer.
        starts: Where each buffer starts.
    """

    form: SlotForm
    payload_bytes: int
    lengths: list[int]
    starts: list[int]


class SlotForm:
    """What batches with the same columns and the same counts of samples and rows have in common.

    Only the lengths of the values of columns that are not tensors may differ.

    Args:
        event: One such batch, whole.

    Attributes:
        sample_count: Samples of a batch.
        columns: The arrays of each column.
        entries: The first array of each entry of a batch, in their order.
        has_ids: Whether one of them holds the sample ids.
        ragged: For each column that is not a tensor: the buffer of its values, their size, and the
            buffer of its offsets.
    """

    __slots__ = (
        "_falls",
        "_flags",
        "_lengths",
        "_starts",
        "_wanted",
        "columns",
        "entries",
        "has_ids",
        "ragged",
        "sample_count",
    )

    def __init__(self, event: BatchEvent) -> None:
        header = event.header
        self.sample_count = header.sample_count
        self.columns: dict[str, ColumnParts] = {}
        first = 0
        for name, view in event.columns.items():
            self.columns[name] = _parts(name, view, first)
            first = self.columns[name].values.buffer + 1
        self.entries = tuple(_entries(self.columns.values()))
        self.has_ids = SAMPLE_ID_COLUMN in self.columns
        self.ragged = tuple(
            (v.buffer, v.dtype.itemsize, o.buffer)
            for v, o, _ in self.columns.values()
            if o is not None
        )
        # None where the length is free.
        self._wanted: list[int | None] = list(header.buffer_bytes)
        for values, _, _ in self.ragged:
            self._wanted[values] = None
        # If only the last length may differ, all buffers start where these do.
        self._lengths = self._wanted[:-1]
        self._starts: list[int] | None = None
        if self._wanted.count(None) == 1 and self._wanted[-1] is None:
            self._starts = self._walk(header.buffer_bytes[:])
        # Where offsets decrease; searching bytes takes a tenth of NumPy's time.
        self._flags = bytearray(self.sample_count)
        self._falls: NDArray[np.bool_] = np.frombuffer(self._flags, np.bool_)

    def layout_of(self, message: bytes, payload_bytes: int) -> SlotLayout | None:
        """Return where the buffers of a batch lie; None if the batch has another form.

        Args:
            message: The message of its slot.
            payload_bytes: Bytes of its payload.
        """
        try:
            header = _parsed(message).batch
        except DecodeError:
            return None
        lengths = header.buffer_bytes[:]
        starts = self._starts_of(lengths)
        if (
            not starts
            or not 0 <= lengths[-1] <= payload_bytes - starts[-1]
            or header.sample_count != self.sample_count
            or header.payload_bytes != payload_bytes
            or header.payload_xxh3
        ):
            return None
        return _new(SlotLayout, (self, payload_bytes, lengths, starts))

    def _starts_of(self, lengths: list[int]) -> list[int] | None:
        """Return where buffers of these lengths start; None if other lengths are needed."""
        if self._starts is not None:
            return self._starts if lengths[:-1] == self._lengths else None
        return self._walk(lengths)

    def _walk(self, lengths: list[int]) -> list[int] | None:
        if len(lengths) != len(self._wanted):
            return None
        for length, wanted in zip(lengths, self._wanted, strict=True):
            if length < 0 or (wanted is not None and length != wanted):
                return None
        return place_buffers(lengths)[0]

    def fits(self, layout: SlotLayout, mapping: Mapping, payload_start: int) -> bool:
        """Return whether all offsets rise from 0 to the end of their values.

        Args:
            layout: The layout of this form.
            mapping: The ring.
            payload_start: Where the payload starts in it.
        """
        _, _, lengths, starts = layout
        for values, item_bytes, offsets in self.ragged:
            first = (payload_start + starts[offsets]) >> _OFFSET_SHIFT
            last = first + self.sample_count
            numbers, words = mapping.numbers, mapping.words
            if numbers[first] or numbers[last] * item_bytes != lengths[values]:
                return False
            np.less(words[first + 1 : last + 1], words[first:last], self._falls)
            if 1 in self._flags:
                return False
        return True


def _parts(name: str, view: ColumnView, first: int) -> ColumnParts:
    """Describe a column whose arrays are the buffers from ``first`` on."""
    valid = offsets = None
    if view.valid is not None:
        valid = PayloadArray(f"{name}.valid", _TENSOR, first, view.valid.shape, view.valid.dtype)
        first += 1
    if view.offsets is not None:
        offsets = PayloadArray(name, view.kind, first, view.offsets.shape, view.offsets.dtype)
        first += 1
    shape = view.values.shape if offsets is None else ()
    return ColumnParts(
        PayloadArray(name, view.kind, first, shape, view.values.dtype), offsets, valid
    )


def _entries(columns: Iterable[ColumnParts]) -> Iterator[PayloadArray]:
    for values, _, valid in columns:
        yield values
        if valid is not None:
            yield valid
