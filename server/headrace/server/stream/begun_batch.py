"""A batch on its way through the steps of its stream, which may be begun ahead of its turn.

Contract:

1. `go_on` takes no longer than a step does between two rows, and never waits for other threads.
2. A failure is kept until the batch's turn comes: `result` raises it.
3. Memory is claimed before the batch has its place, and never afterwards: while one batch is
   written, the next may claim.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from headrace.errors import HeadraceError
from headrace.server.plan.planned_batches import PlannedBatch
from headrace.server.shares import ShortError
from headrace.server.stream.batch_maker import Made
from headrace.server.stream.pipeline import Steps

# How often a waiting thread looks up (arbitrary: a heartbeat is due every few seconds).
_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Damaged:
    """The result for a batch some of whose samples cannot be used.

    Attributes:
        rows: Their rows.
    """

    rows: tuple[int, ...]


class BegunBatch:
    """One batch; the contract is above.

    Args:
        planned: The batch as it was planned.
        work: Makes it.

    Attributes:
        planned: The batch as it was planned.
        claimed: How many bytes it takes to make the batch.
        is_placed: Whether it has its place, and claims no more memory.
        is_over: Whether it is made, or has failed.
        failure: Why it has failed.
    """

    def __init__(
        self,
        planned: PlannedBatch,
        work: Callable[[BegunBatch], Steps[Made | Damaged]],
        *,
        claimed: int,
    ) -> None:
        self.planned = planned
        self.claimed = claimed
        self.is_placed = self.is_over = False
        self.failure: HeadraceError | ShortError | None = None
        self._made: Made | Damaged | None = None
        self._waits: Event | None = None
        self._work = work(self)

    @property
    def is_idle(self) -> bool:
        """Return whether the batch can only go on when another thread has finished something."""
        return self.is_over or self._waits is not None

    def go_on(self) -> None:
        """Do what can be done now, or a part of it."""
        if self.is_over:
            return
        try:
            self._waits = next(self._work)
        except StopIteration as end:
            self._made, self.is_over = end.value, True
        except (HeadraceError, ShortError) as error:
            # Without its frames: they hold everything that was made, and refer to this object.
            self.failure, self.is_over = error.with_traceback(None), True

    def wait(self) -> None:
        """Wait until there may be something to do, for a short time at most."""
        if self._waits is not None:
            self._waits.wait(_TICK_S)

    def result(self) -> Made | Damaged:
        """Return what was made, when the batch is over; call it once.

        Raises:
            HeadraceError: It has failed.
            ShortError: There was not enough memory.
        """
        failure, self.failure = self.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                # It refers to this frame from now on.
                del failure
        assert self._made is not None
        return self._made

    def close(self) -> None:
        """Give the batch up, and wait for the threads that still work on it."""
        self._work.close()
