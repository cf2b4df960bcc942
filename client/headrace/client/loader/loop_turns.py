"""Allow one loop at a time over a dataset, in one place that hands batches over.

Contract:

1. Batches are taken in turns, and a turn belongs to one thread: a second thread is refused at once.
2. A new loop ends the one before it, in whichever thread that runs: the old loop gets an error when
   it asks for another batch. So each batch goes to one loop.
3. Moving the dataset (`seek`, `load_state_dict`) needs a turn too.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading

from headrace.errors import BadArgumentError

_ADVICE = (
    "a dataset serves one loop at a time: make a dataset for each thread (each with its own rank "
    "if they share the samples), or let one thread iterate and pass batches on through a "
    "queue.Queue"
)


class Loop:
    """One iteration of a dataset.

    Attributes:
        epoch: The epoch whose rest it yields.
        moves: How often the dataset was moved by hand before.
    """

    __slots__ = ("epoch", "moves")

    def __init__(self, epoch: int, moves: int) -> None:
        self.epoch, self.moves = epoch, moves


class LoopTurns:
    """Gives turns to loops; a copy in another process starts without any.

    Attributes:
        newest: The loop that gets batches.
    """

    def __init__(self) -> None:
        self.newest: Loop | None = None
        # Re-entrant: a thread keeps a turn whose end Ctrl-C interrupted.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[LoopTurns], tuple[()]]:
        """Unpickle without any turn."""
        return LoopTurns, ()

    def begin(self, loop: Loop) -> None:
        """Make this the loop that gets batches.

        Raises:
            BadArgumentError: Another thread waits for a batch.
        """
        self.take()
        self.newest = loop
        self._lock.release()

    def take(self, loop: Loop | None = None) -> None:
        """Start a turn; the caller must call `end` after it.

        Args:
            loop: The loop; None for a caller that moves the dataset.

        Raises:
            BadArgumentError: Another thread has the turn, or another loop has started since.
        """
        if not self._lock.acquire(blocking=False):
            raise BadArgumentError(
                f"{threading.current_thread().name} uses a dataset from which another thread is "
                f"taking a batch; {_ADVICE}",
                field="dataset",
            )
        if loop is not None and self.newest is not loop:
            self._lock.release()
            raise overtaken()

    def end(self) -> None:
        """End a turn."""
        self._lock.release()


def overtaken() -> BadArgumentError:
    """Return the error for a loop after another one has started."""
    return BadArgumentError(
        f"another loop over this dataset started, so this one gets no more batches; {_ADVICE}",
        field="dataset",
    )
