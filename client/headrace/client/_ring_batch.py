"""A batch in a slot whose layout is that of one before: nothing is read before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.client._assembler import BatchEvent, header_of
from headrace.client._layout import SAMPLE_ID_COLUMN, ColumnView, Places
from headrace.client._ring_memory import Mapping, SlotArray
from headrace.ring import OpenSlot
from headrace.v1 import shard_service_pb2 as pb

_BOOL = np.dtype(np.bool_)
_UINT8 = np.dtype(np.uint8)


class SlotLayout:
    """What batches of tensors alone have in common.

    Attributes:
        sample_count: Samples of a batch.
        places: Where the columns lie.
        arrays: Name, begin in the payload, shape and dtype of each array, validity among them.
        has_ids: Whether one is that of the sample ids.
    """

    __slots__ = ("arrays", "has_ids", "places", "sample_count")

    def __init__(self, places: Places, sample_count: int) -> None:
        self.sample_count = sample_count
        self.places = places
        arrays: list[tuple[str, int, tuple[int, ...], np.dtype[Any]]] = []
        for name, shape, dtype, begin, valid_begin in places.columns:
            arrays.append((name, begin, shape, dtype))
            if valid_begin is not None:
                arrays.append((f"{name}.valid", valid_begin, (places.row_count,), _BOOL))
        self.arrays = tuple(arrays)
        self.has_ids = any(name == SAMPLE_ID_COLUMN for name, *_ in arrays)


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
        """Return name and array of each column, and of each validity as ``name.valid``."""
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
            arrays = dict(self.arrays())
            return {
                name: ColumnView(
                    pb.COLUMN_KIND_TENSOR, arrays[name], None, arrays.get(f"{name}.valid")
                )
                for name, *_ in self.layout.places.columns
            }

        @property
        def payload(self) -> SlotArray:
            """``(payload_bytes,) uint8``."""
            size = self.layout.places.payload_bytes
            return self._mapping.array_at(self._opened.payload_begin, (size,), _UINT8, self)
