"""A batch in a slot with the layout of an earlier batch, so its parts are read on demand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headrace.client.transports.ring.layout import SlotForm, SlotLayout
from headrace.client.transports.ring.memory import Mapping, SlotArray
from headrace.client.wire.assembler import PartsEvent, PayloadArray, header_of
from headrace.client.wire.payload_layout import ColumnView
from headrace.ring import OpenSlot
from headrace.v1 import shard_service_pb2 as pb

_UINT8 = np.dtype(np.uint8)


class SlotEvent(PartsEvent):
    """A batch whose header and arrays are made on demand.

    It owns its slot, and every array that it makes keeps it alive.
    """

    __slots__ = ("__del__", "_mapping", "_opened", "layout", "mark", "sample_count")
    layout: SlotLayout
    mark: bytes
    sample_count: int

    def __init__(self, mapping: Mapping, opened: OpenSlot, layout: SlotLayout) -> None:
        """Take over a slot.

        Args:
            mapping: The ring.
            opened: The slot.
            layout: The slot's layout.
        """
        self.ahead = None
        self.mark = opened.message
        self.sample_count = layout.form.sample_count
        self._mapping, self._opened, self.layout = mapping, opened, layout
        # See `Mapping.give_up`.
        self.__del__ = partial(mapping.give_up, opened)

    @property
    def form(self) -> SlotForm:
        """What the batch has in common with others."""
        return self.layout.form

    def array(self, part: PayloadArray) -> SlotArray:
        """Return an array of the slot, which keeps the slot alive."""
        _, _, buffer, shape, dtype = part
        _, _, lengths, starts = self.layout
        if not shape:
            shape = (lengths[buffer] // dtype.itemsize,)
        return self._mapping.array_at(self._opened[3] + starts[buffer], shape, dtype, self)

    def view_of(self, column: str) -> ColumnView:
        """Return the views of a column."""
        values, offsets, valid = self.layout.form.columns[column]
        return ColumnView(
            values.kind,
            self.array(values),
            None if offsets is None else self.array(offsets),
            None if valid is None else self.array(valid),
        )

    if not TYPE_CHECKING:
        # These replace the fields. They store no arrays, which would keep this object alive.

        @property
        def header(self) -> pb.BatchHeader:
            """The wire's header."""
            return header_of(self.mark)

        @property
        def columns(self) -> dict[str, ColumnView]:
            """Views of the slot by column name."""
            return {name: self.view_of(name) for name in self.layout.form.columns}

        @property
        def payload(self) -> SlotArray:
            """``(payload_bytes,) uint8``."""
            start, size = self._opened.payload_start, self.layout.payload_bytes
            return self._mapping.array_at(start, (size,), _UINT8, self)
