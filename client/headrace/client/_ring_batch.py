"""A batch in a slot that is laid out like one before: nothing is read before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.client._assembler import BatchEvent, header_of
from headrace.client._layout import SAMPLE_ID_COLUMN, ColumnView
from headrace.client._ring_memory import Mapping, SlotArray
from headrace.ring import OpenSlot
from headrace.v1 import shard_service_pb2 as pb

_UINT8 = np.dtype(np.uint8)


class Place(NamedTuple):
    """Where an array lies in a payload.

    Attributes:
        name: Of its column, or ``column.valid``.
        begin: Its first byte.
        shape: Its shape.
        dtype: Its items.
    """

    name: str
    begin: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class RaggedPlaces(NamedTuple):
    """Where a column lies that is no tensor.

    Attributes:
        kind: ``pb.ColumnKind``.
        values: Its values.
        offsets: Its offsets.
        valid: Its validity, if it has any.
    """

    kind: int
    values: Place
    offsets: Place
    valid: Place | None


class SlotLayout:
    """What batches of equal counts and lengths have in common.

    Args:
        event: One of them, whole.

    Attributes:
        sample_count: Samples of a batch.
        payload_bytes: Bytes of a payload.
        arrays: All arrays of tensors, their validity among them, in the order of the columns.
        ragged: The other columns, by name.
        names: All columns.
        has_ids: Whether one is that of the sample ids.
    """

    __slots__ = ("arrays", "has_ids", "names", "payload_bytes", "ragged", "sample_count")

    def __init__(self, event: BatchEvent) -> None:
        self.sample_count = event.sample_count
        self.payload_bytes = event.payload.size
        self.names = tuple(event.columns)
        self.has_ids = SAMPLE_ID_COLUMN in self.names
        arrays: list[Place] = []
        self.ragged: dict[str, RaggedPlaces] = {}
        for name, view in event.columns.items():
            values = _place(name, view.values, event)
            valid = None if view.valid is None else _place(f"{name}.valid", view.valid, event)
            if view.offsets is None:
                arrays += [values] if valid is None else [values, valid]
            else:
                offsets = _place(name, view.offsets, event)
                self.ragged[name] = RaggedPlaces(view.kind, values, offsets, valid)
        self.arrays = tuple(arrays)

    def fits(self, mapping: Mapping, begin: int) -> bool:
        """Say whether the offsets of a payload that begins there are those of such a batch."""
        for places in self.ragged.values():
            _, at, shape, dtype = places.offsets
            offsets = np.ndarray(shape, dtype, mapping.mapped, begin + at)
            if (
                offsets[0]
                or offsets[-1] != places.values.shape[0]
                or np.count_nonzero(offsets[1:] < offsets[:-1])
            ):
                return False
        return True


def _place(name: str, array: NDArray[np.generic], event: BatchEvent) -> Place:
    # An array without elements may have any address.
    begin = array.ctypes.data - event.payload.ctypes.data if array.size else 0
    return Place(name, begin, array.shape, array.dtype)


class SlotEvent(BatchEvent):
    """A batch whose header and arrays are made when asked for.

    It owns its slot, as every array that it makes does through it.
    """

    __slots__ = ("_mapping", "_opened", "layout", "mark", "sample_count")
    layout: SlotLayout
    mark: bytes
    sample_count: int

    def __init__(self, mapping: Mapping, opened: OpenSlot, layout: SlotLayout) -> None:
        """Take a slot.

        Args:
            mapping: The ring.
            opened: The slot.
            layout: How it is laid out.
        """
        self.ahead = None
        self.mark = opened.message
        self.sample_count = layout.sample_count
        self._mapping, self._opened, self.layout = mapping, opened, layout

    # A weak reference with a callback does the same, and takes twice as long.
    def __del__(self) -> None:
        self._mapping.gone.append(self._opened)

    def arrays(self) -> list[tuple[str, SlotArray]]:
        """Return name and array of each tensor, and of each validity as ``name.valid``."""
        first, array_at = self._opened.payload_begin, self._mapping.array_at
        return [
            (name, array_at(first + begin, shape, dtype, self))
            for name, begin, shape, dtype in self.layout.arrays
        ]

    if not TYPE_CHECKING:
        # In place of the fields. What is made here is not kept here: it keeps this.

        @property
        def header(self) -> pb.BatchHeader:
            """The wire's header."""
            return header_of(self.mark)

        @property
        def columns(self) -> dict[str, ColumnView]:
            """Views of the slot by column name."""
            arrays, ragged = dict(self.arrays()), self.layout.ragged
            return {
                name: self._ragged(ragged[name])
                if name in ragged
                else ColumnView(
                    pb.COLUMN_KIND_TENSOR, arrays[name], None, arrays.get(f"{name}.valid")
                )
                for name in self.layout.names
            }

        @property
        def payload(self) -> SlotArray:
            """``(payload_bytes,) uint8``."""
            size = self.layout.payload_bytes
            return self._mapping.array_at(self._opened.payload_begin, (size,), _UINT8, self)

    def _ragged(self, places: RaggedPlaces) -> ColumnView:
        valid = None if places.valid is None else self._at(places.valid)
        return ColumnView(places.kind, self._at(places.values), self._at(places.offsets), valid)

    def _at(self, place: Place) -> SlotArray:
        _, begin, shape, dtype = place
        return self._mapping.array_at(self._opened.payload_begin + begin, shape, dtype, self)
