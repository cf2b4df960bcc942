"""The results of a user's function on batches, on their way to the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from torch.utils.data._utils.pin_memory import pin_memory

from headrace.client.batch.batch import Batch
from headrace.client.batch.handover import Origin, note_look
from headrace.client.batch.transformed import transform_of
from headrace.client.wire.assembler import BatchEvent

if TYPE_CHECKING:
    # Defaults of type variables are new in Python 3.13.
    from typing_extensions import TypeVar

    Result = TypeVar("Result", default=Batch)
else:
    from typing import TypeVar

    Result = TypeVar("Result")
"""What a loop gets: what ``transform=`` returns, and a `Batch` without it."""


@dataclass(frozen=True, slots=True)
class OnBatches:
    """Calls a function with batches as loops see them.

    Attributes:
        function: The user's function.
        group_count: The number of ranks with samples of their own.
    """

    function: Callable[[Batch], Any]
    group_count: int

    def __call__(self, event: BatchEvent) -> object:
        """Return the function's result for a batch."""
        return self.function(Batch.received(event, group_count=self.group_count))


def on_batches_of(function: Callable[[Batch], Any] | None, group_count: int) -> OnBatches | None:
    """Return a wrapper that calls the function given as ``transform=``.

    Args:
        function: The user's function.
        group_count: The number of ranks with samples of their own.

    Raises:
        BadArgumentError: The argument is not callable.
    """
    function = transform_of(function)
    return None if function is None else OnBatches(function, group_count)


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """A result on its way from a worker, with the batch that it was made from.

    Attributes:
        result: What the function returned.
        token: The resume token of the batch.
        origin: Where to report to in the main process.
    """

    result: object
    token: bytes
    origin: Origin

    def opened(self) -> object:
        """Return the result, and tell the dataset that the loop has got it."""
        note_look(self.origin, self.token)
        return self.result

    def pin_memory(self) -> Self:
        """Return the result in pinned memory, as far as torch can pin it."""
        return replace(self, result=pin_memory(self.result))  # type: ignore[no-untyped-call] # torch leaves it so
