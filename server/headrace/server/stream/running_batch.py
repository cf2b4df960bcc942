"""A batch on its way through the stages of its stream; it may be started before its turn.

Contract:

1. `advance` takes no longer than a stage takes between two rows, and never waits for other threads.
2. A failure is kept until the batch's turn: `result` raises it.
3. Memory is claimed before the batch has its place, and never afterwards. So while one batch is
   written, the next one may claim.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import TypeAlias

from headrace.errors import HeadraceError
from headrace.server.batch.stage import Running
from headrace.server.plan.planned_batches import PlannedBatch
from headrace.server.shares import ShortError
from headrace.server.stream.batch_maker import EncodedBatches

# How often a waiting thread checks for work (arbitrary: heartbeats are due every few seconds).
_TICK_S = 0.02


Outcome: TypeAlias = tuple[EncodedBatches | None, Sequence[int]]
"""A batch that was made; or none, and the rows of samples that cannot be used."""


class RunningBatch:
    """One batch; the contract is above.

    Args:
        planned: The planned batch.
        work: Makes the batch.

    Attributes:
        planned: The planned batch.
        claimed: Bytes that were claimed to make the batch.
        is_placed: Whether the batch has its place, and claims no more memory.
        is_over: Whether the batch is made, or has failed.
        failure: The error of a failed batch.
    """

    def __init__(
        self,
        planned: PlannedBatch,
        work: Callable[[RunningBatch], Running[Outcome]],
        *,
        claimed: int,
    ) -> None:
        self.planned = planned
        self.claimed = claimed
        self.is_placed = self.is_over = False
        self.failure: HeadraceError | ShortError | None = None
        self._outcome: Outcome | None = None
        self._waits: Event | None = None
        self._work = work(self)

    @property
    def is_idle(self) -> bool:
        """Return whether the batch waits for another thread."""
        return self.is_over or self._waits is not None

    def advance(self) -> None:
        """Do some of the work that can be done now."""
        if self.is_over:
            return
        try:
            self._waits = next(self._work)
        except StopIteration as end:
            self._outcome, self.is_over = end.value, True
        except (HeadraceError, ShortError) as error:
            # Without the traceback, whose frames hold everything that was made, and this object.
            self.failure, self.is_over = error.with_traceback(None), True

    def wait(self) -> None:
        """Wait until there may be work to do, but only for a short time."""
        if self._waits is not None:
            self._waits.wait(_TICK_S)

    def result(self) -> Outcome:
        """Return the result of a batch that is over; call it once.

        Raises:
            HeadraceError: The batch has failed.
            ShortError: There was not enough memory.
        """
        failure, self.failure = self.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                # The raised error refers to this frame.
                del failure
        assert self._outcome is not None
        return self._outcome

    def close(self) -> None:
        """Give up the batch, and wait for threads that still work on it."""
        self._work.close()
