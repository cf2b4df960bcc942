"""A batch in a slot whose layout is that of one before: nothing is read before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.message import DecodeError

from headrace.client._assembler import BatchEvent
from headrace.client._layout import ColumnView, Places
from headrace.client._ring_memory import Slot
from headrace.errors import StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb

_UINT8 = np.dtype(np.uint8)
_TENSOR = pb.COLUMN_KIND_TENSOR


def read_message(message: bytes) -> pb.BatchHeader:
    """Return the header in a slot's message.

    Raises:
        StreamCorruptError: It is none.
    """
    try:
        return pb.ReadBatchesResponse.FromString(message).batch
    except DecodeError as error:
        raise StreamCorruptError(f"the message of a slot cannot be read: {error}") from error


class SlotHead:
    """The header of a batch in a slot, apart from the slot: reads its message when asked."""

    __slots__ = ("_header", "_message")

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._header: pb.BatchHeader | None = None

    @property
    def header(self) -> pb.BatchHeader:
        """The header."""
        if self._header is None:
            self._header = read_message(self._message)
        return self._header

    @property
    def resume_token(self) -> bytes:
        """The token after the batch."""
        return self.header.resume_token


class SlotEvent(BatchEvent):
    """A batch of tensors alone; ``header``, ``columns`` and ``payload`` are made when asked for."""

    __slots__ = ("_begin", "_places", "_slot", "head", "sample_count")
    head: SlotHead
    sample_count: int

    def __init__(
        self, slot: Slot, head: SlotHead, places: Places, *, begin: int, sample_count: int
    ) -> None:
        """Take a slot.

        Args:
            slot: Where the batch lies.
            head: Its header.
            places: Where its columns lie in its payload.
            begin: Where its payload begins in the ring.
            sample_count: Samples in it.
        """
        self.ahead = None
        self.head = head
        self.sample_count = sample_count
        self._slot, self._places, self._begin = slot, places, begin

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Asked only for what is not there yet.
            if name == "columns":
                self.columns = found = self._columns()
            elif name == "header":
                self.header = found = self.head.header
            elif name == "payload":
                size = self._places.payload_bytes
                self.payload = found = self._slot.array((size,), _UINT8, self._begin)
            else:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            return found

    def _columns(self) -> dict[str, ColumnView]:
        array, first, rows = self._slot.array, self._begin, self._places.row_count
        columns = {}
        for name, shape, dtype, begin, valid_begin in self._places.columns:
            valid = None
            if valid_begin is not None:
                valid = array((rows,), np.dtype(np.bool_), first + valid_begin)
            values = array(shape, dtype, first + begin)
            columns[name] = ColumnView(_TENSOR, values, None, valid)
        return columns
