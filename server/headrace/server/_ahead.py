"""Work out a stream's messages in a thread beside the one that sends them.

gRPC takes the next message when the last is on its way. Made only then, a message would cost its
own time on top of the wire's; made ahead, the two go on at once.

Contract:

1. Messages come out in the order in which the stream made them.
2. The end and a failure travel through the queue as values: they come out after all messages
   before them.
3. No more than ``budget_bytes`` wait, or than the last batch has if that is more, and one message:
   so a batch is worked out while the one before it is sent, however large they are.
4. `cancel`, from any thread, ends the stream and every wait. Closing the generator has the same
   effect, and leaves no thread behind.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from contextlib import closing
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
        """Bytes of the batch that was made last; for the thread that uses `messages`."""


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
        self._waiting: deque[bytes | _Ended] = deque()
        self._waiting_bytes = 0
        self._cancelled = False
        lock = threading.Lock()
        self._filled = threading.Condition(lock)
        self._emptied = threading.Condition(lock)

    def messages(self) -> Generator[bytes, None, None]:
        """Yield the stream's messages; the contract is above."""
        thread = threading.Thread(target=self._run, name="headrace-ahead", daemon=True)
        thread.start()
        try:
            while isinstance(item := self._take(), bytes):
                yield item
            if item.error is not None:
                raise item.error
        finally:
            self.cancel()
            thread.join()

    def cancel(self) -> None:
        """End the stream because nobody takes its messages."""
        with self._emptied:
            self._cancelled = True
            self._emptied.notify_all()
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
        with self._filled:
            self._waiting.append(_Ended(error))
            self._filled.notify()

    def _put(self, message: bytes) -> bool:
        budget_bytes = max(self._budget_bytes, self._stream.batch_bytes)
        with self._emptied:
            while self._waiting_bytes >= budget_bytes and not self._cancelled:
                self._emptied.wait()
            self._waiting.append(message)
            self._waiting_bytes += len(message)
            self._filled.notify()
            return not self._cancelled

    def _take(self) -> bytes | _Ended:
        with self._filled:
            while not self._waiting:
                self._filled.wait()
            item = self._waiting.popleft()
            if isinstance(item, bytes):
                self._waiting_bytes -= len(item)
                self._emptied.notify()
            return item
