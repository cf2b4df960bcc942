"""Work out a stream's messages in a thread beside the one that sends them.

gRPC takes the next message when the last is on its way. Made only then, a message would cost its
own time on top of the wire's; made ahead, the two go on at once.

Contract:

1. Messages come out in the order in which the stream made them.
2. The end and a failure travel through the queue as values: they come out after all messages
   before them.
3. No more than ``budget_bytes`` wait, or than what was made last has if that is more, and one
   message: so what is worked out at once, a batch or several, is so while what was before it is
   sent, however large they are.
4. While the messages of a first batch go out no further one is made: somebody waits for it, and it
   has the processors for itself.
5. `cancel`, from any thread, ends the stream and every wait. Closing the generator has the same
   effect, and leaves no thread behind.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing
from queue import SimpleQueue
from typing import Protocol

# A batch of the usual size: enough to make one while another is sent. More would only take memory.
BUDGET_BYTES = 1 << 20


class Messages(Protocol):
    """What a call answers; `headrace.server._stream.BatchStream` holds the contract."""

    def messages(self) -> Generator[bytes, None, None]:
        """Yield the messages; one thread alone uses it from its begin to its end."""

    def cancel(self) -> None:
        """End them, from any thread."""


class Batches(Messages, Protocol):
    """What is worked out ahead."""

    @property
    def batch_bytes(self) -> int:
        """Bytes of what was made last, a batch or several; for the thread that uses `messages`."""


class _Ended:
    """No message comes any more."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class Ahead:
    """The messages of one stream, worked out ahead of need.

    Args:
        stream: Makes them.
        budget_bytes: Size of those that wait that suffices, of batches however small.
    """

    def __init__(self, stream: Batches, *, budget_bytes: int = BUDGET_BYTES) -> None:
        self._stream = stream
        self._budget_bytes = budget_bytes
        # Bounded by what `_put` waits for. These queues are C's: a condition would cost two dozen
        # calls a message, on the way of a thread that gRPC waits for.
        self._made: SimpleQueue[bytes | _Ended] = SimpleQueue()
        self._taken: SimpleQueue[int | None] = SimpleQueue()
        self._waiting_bytes = 0
        self._put_bytes = 0
        self._first_bytes = 0

    def messages(self) -> Generator[bytes, None, None]:
        """Yield the stream's messages; the contract is above."""
        thread = threading.Thread(target=self._run, name="headrace-ahead", daemon=True)
        thread.start()
        try:
            while isinstance(item := self._made.get(), bytes):
                self._taken.put(len(item))
                yield item
            if item.error is not None:
                raise item.error
        finally:
            self.cancel()
            thread.join()

    def cancel(self) -> None:
        """End the stream because nobody takes its messages."""
        self._taken.put(None)
        self._stream.cancel()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            with closing(self._stream.messages()) as messages:
                for message in messages:
                    if not self._put(message):
                        break
        except Exception as failure:  # noqa: BLE001 - the sending thread raises it, bug or not
            error = failure
        self._made.put(_Ended(error))

    def _put(self, message: bytes) -> bool:
        """Hand a message over when there is room for it; return whether somebody takes it."""
        batch_bytes = self._stream.batch_bytes
        self._first_bytes = self._first_bytes or batch_bytes
        is_first = self._put_bytes < self._first_bytes
        budget_bytes = 1 if is_first else max(self._budget_bytes, batch_bytes)
        self._put_bytes += len(message)
        while self._waiting_bytes >= budget_bytes:
            taken = self._taken.get()
            if taken is None:
                return False
            self._waiting_bytes -= taken
        self._waiting_bytes += len(message)
        self._made.put(message)
        return True
