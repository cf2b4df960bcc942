"""Where a stream's batches go: into the messages of the call, or somewhere beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.payload import PayloadLayout
from headrace.server.batch.frames import BatchFrames, Finished, Target, WholeMessages
from headrace.server.kernels.loader import KERNELS, Loader
from headrace.v1 import shard_service_pb2 as pb


class Frames(Protocol):
    """One batch whose payload is yet to be written."""

    def pieces(self, begin: int, end: int) -> Sequence[NDArray[np.uint8]]:
        """Return where the payload's bytes ``[begin, end)`` go, one array after the other."""

    def finish(self) -> list[bytes]:
        """Return the call's messages, when all of the payload is written; call it once, last."""


class Places(Protocol):
    """Batches, each in one piece, whose payloads are yet to be written."""

    def add(self, header: pb.BatchHeader, buffer_bytes: tuple[int, ...]) -> None:
        """Take one batch more.

        Args:
            header: The batch; only its hash is filled in here.
            buffer_bytes: As in the header; the same object as for the batch before if it is equal.
        """

    def find(self) -> list[Target]:
        """Return where each batch goes; call it once, when all are there."""

    def finish(self) -> list[Finished]:
        """Return what goes out, in order, when all is written; call it once."""


MakeFrames = Callable[[pb.BatchHeader, PayloadLayout], Frames]
"""Begins a batch; the header's fields about the payload are filled in."""


class ClientGoneError(Exception):
    """Nobody takes the batches any more; there is nobody to tell."""


class Outlet(Protocol):
    """Takes the batches of one stream; for the thread that makes them, but for `wake`."""

    def wait(self) -> None:
        """Return when a batch may be made, or soon after `wake`.

        Raises:
            ClientGoneError: Nobody would take it.
        """

    def frames(self, header: pb.BatchHeader, layout: PayloadLayout) -> Frames:
        """Begin a batch; as `MakeFrames`."""

    def room(self, most: int) -> int:
        """Return how many batches to make together, at least one; call it after `wait`."""

    def places(self) -> Places:
        """Begin several batches."""

    def announce(self) -> None:
        """Tell the client of the next batch that is finished, before its messages go out.

        Raises:
            ClientGoneError: It has gone.
        """

    def flush(self) -> None:
        """Tell the client of all that was announced, before something is waited for.

        Raises:
            ClientGoneError: It has gone.
        """

    def wake(self) -> None:
        """End a wait, from any thread."""


class WireOutlet:
    """Sends batches in the messages of the call, which has its own flow control.

    Args:
        max_chunk_bytes: Greatest payload of one message.
        group_bytes: Greatest size of a message of several batches; 0 where there may be none.
        kernels: The compiled functions, if they are there.
    """

    def __init__(
        self, max_chunk_bytes: int, *, group_bytes: int = 0, kernels: Loader = KERNELS
    ) -> None:
        self._max_chunk_bytes = max_chunk_bytes
        self._kernels = kernels
        self._group_bytes = group_bytes

    def wait(self) -> None:
        """Have nothing to wait for."""

    def frames(self, header: pb.BatchHeader, layout: PayloadLayout) -> Frames:
        """Begin a batch."""
        return BatchFrames(
            header, layout, max_chunk_bytes=self._max_chunk_bytes, kernels=self._kernels
        )

    def room(self, most: int) -> int:
        """Return that there is room for all."""
        return most

    def places(self) -> Places:
        """Begin several batches."""
        return WholeMessages(group_bytes=self._group_bytes)

    def announce(self) -> None:
        """Leave it to the messages."""

    def flush(self) -> None:
        """Leave it to the messages."""

    def wake(self) -> None:
        """Have nobody to wake."""
