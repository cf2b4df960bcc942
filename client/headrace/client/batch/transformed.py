"""Apply a user's function to each batch, in the thread that reads ahead.

Contract:

1. The function gets each batch once, in order, and the loop gets what it returns, None included.
2. Position: an event keeps the mark of its batch, whatever the function returns or changes, so a
   state describes the last result that was handed over.
3. Failure: anything that the function raises, even `StopIteration`, is raised after all earlier
   results, as a `StageFailedError` that names the batch; the next `for` starts with that batch.
4. Memory: the parts of a batch that the function does not keep are freed when the next batch is
   read. A waiting result counts as many bytes as its batch had.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import numpy as np

from headrace.arguments import shown
from headrace.client.feeds.feed import Event
from headrace.client.reader.prefetch import Reader, ReaderAround
from headrace.client.wire.assembler import BatchEvent, Mark, header_of
from headrace.errors import BadArgumentError, StageFailedError
from headrace.v1 import shard_service_pb2 as pb

Transformation = Callable[[BatchEvent], object]
"""Turns a batch into what the loop gets."""


class TransformedEvent(BatchEvent):
    """The result of a batch; the batch's memory is not kept.

    Attributes:
        mark: The mark of the batch.
        result: What the function returned.
    """

    __slots__ = ("mark", "result", "sample_count")
    mark: Mark
    sample_count: int

    def __init__(self, mark: Mark, header: pb.BatchHeader, result: object) -> None:
        self.mark, self.result = mark, result
        self.header, self.sample_count = header, header.sample_count
        self.columns, self.payload, self.ahead = {}, _NOTHING, None


_NOTHING = np.empty(0, np.uint8)


class TransformingReader(ReaderAround):
    """A reader that applies a function to its batches.

    Closing does not end a running function; joining the thread waits for it.
    """

    def __init__(self, reader: Reader, transformation: Transformation) -> None:
        """Apply a function to the batches of a reader.

        Args:
            reader: Must not yield several batches as one event.
            transformation: Turns a batch into what the loop gets.
        """
        super().__init__(reader)
        self._transformation = transformation

    def events(self) -> Generator[Event, None, None]:
        """Yield the reader's events, with transformed batches."""
        # Closed here: the traceback of a function's error would keep the stream open.
        with closing(self._reader.events()) as source:
            for event in source:
                yield self._transformed(event) if isinstance(event, BatchEvent) else event

    def _transformed(self, event: BatchEvent) -> TransformedEvent:
        self.clock.enter("transform")
        mark = event.mark
        header = header_of(mark)
        result = called(self._transformation, event, header)
        self.clock.enter("rest")
        return TransformedEvent(mark, header, result)


def called(
    transformation: Transformation, event: BatchEvent, header: pb.BatchHeader | None = None
) -> object:
    """Return the result for a batch.

    Raises:
        StageFailedError: The function raised an exception, which is the cause.
    """
    try:
        return transformation(event)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        head = event.header if header is None else header
        raise StageFailedError(
            f"the function given as transform= failed with the batch of step {head.step} (epoch "
            f"{head.epoch}, position {head.position}): {shown(error)}; its own traceback is above. "
            "The next `for` starts with this batch",
            step=head.step,
            epoch=head.epoch,
            position=head.position,
        ) from error


def transform_of(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Check the argument ``transform=``.

    Raises:
        BadArgumentError: The argument is not callable.
    """
    if function is None or callable(function):
        return function
    raise BadArgumentError(
        f"transform is {shown(function)}, of type {type(function).__name__}; expected a function "
        "of a batch, or None. Pass what the server should do with a batch as stages=[…]",
        field="transform",
    )
