"""Make a stream's messages in one thread while another one sends them.

gRPC takes the next message when the last one is on its way. If messages were made only then, making
and sending would take turns; if they are made ahead, the two overlap.

Contract:

1. Messages are sent in the order in which the stream made them.
2. The end and a failure travel through the queue as values, so they come after all messages before
   them.
3. At most ``budget_bytes`` and one message wait, or the latest batches if these are larger. So
   batches that are made together are made while those before them are sent, however large they
   are.
4. The first batch is made by the sending thread, and while it is sent, no other is made: its client
   waits for this one, so it gets the processors. One message more is made so, since a client that
   wants a single batch is gone by then.
5. While a second thread is not worth its cost, or cannot be started, the sending thread makes the
   messages itself. The work changes threads only between two messages.
6. `cancel`, from any thread, ends the stream and every wait. Closing the generator has the same
   effect, and leaves no thread behind.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from queue import SimpleQueue
from typing import Protocol

# A batch of usual size: one is made while another is sent. More would only take memory.
BUDGET_BYTES = 1 << 20


class Messages(Protocol):
    """The messages of a call; the contract is in `headrace.server.stream.batch_stream`."""

    def messages(self) -> Generator[bytes, None, None]:
        """Yield the messages; only one thread at a time may use it."""

    def cancel(self) -> None:
        """End the messages; any thread may call this."""


class Batches(Messages, Protocol):
    """Messages that are made ahead."""

    @property
    def batch_bytes(self) -> int:
        """Payload bytes of the latest batches made together; only for the user of `messages`."""


class _Stopped:
    """The thread makes no more messages.

    Attributes:
        error: The failure, if there was one.
        is_end: Whether there are no more messages at all.
    """

    def __init__(self, error: Exception | None, *, is_end: bool) -> None:
        self.error = error
        self.is_end = is_end


def _always() -> bool:
    return True


class MessagesAhead:
    """The messages of one stream, made ahead of need.

    Args:
        stream: Makes the messages.
        budget_bytes: How many bytes may always wait to be sent.
        is_worth_it: Returns whether a second thread is worth its cost now; called in any thread
            before each message.
    """

    def __init__(
        self,
        stream: Batches,
        *,
        budget_bytes: int = BUDGET_BYTES,
        is_worth_it: Callable[[], bool] = _always,
    ) -> None:
        self._stream = stream
        self._budget_bytes = budget_bytes
        self._is_worth_it = is_worth_it
        # Bounded by `_put`. These queues are written in C; a condition would cost two dozen Python
        # calls for each message, in a thread that gRPC waits for.
        self._made: SimpleQueue[bytes | _Stopped] = SimpleQueue()
        self._taken: SimpleQueue[int | None] = SimpleQueue()
        self._is_over = False
        self._waiting_bytes = 0

    def messages(self) -> Generator[bytes, None, None]:
        """Yield the stream's messages; the contract is above."""
        with closing(self._stream.messages()) as messages:
            yield from self._begun(messages)
            while not self._is_over:
                if self._is_worth_it():
                    yield from self._made_by_thread(messages)
                else:
                    yield from self._made_here(messages)

    def cancel(self) -> None:
        """End the stream because nobody reads its messages."""
        self._taken.put(None)
        self._stream.cancel()

    def _begun(self, messages: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
        sent, is_first_out = 0, False
        for message in messages:
            sent += len(message)
            yield message
            if is_first_out:
                return
            is_first_out = 0 < self._stream.batch_bytes <= sent
        self._is_over = True

    def _made_here(self, messages: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
        for message in messages:
            yield message
            if self._is_worth_it():
                return
        self._is_over = True

    def _made_by_thread(
        self, messages: Generator[bytes, None, None]
    ) -> Generator[bytes, None, None]:
        thread = threading.Thread(
            target=self._run, args=(messages,), name="headrace-ahead", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The system has no thread left. After the next message there may be one.
            yield from self._made_here(messages)
            return
        self._is_over = True  # unless the thread reports otherwise
        try:
            while isinstance(item := self._made.get(), bytes):
                self._taken.put(len(item))
                yield item
            self._is_over = item.is_end
            if item.error is not None:
                raise item.error
        finally:
            if self._is_over:
                self.cancel()
            thread.join()

    def _run(self, messages: Generator[bytes, None, None]) -> None:
        self._made.put(self._work_ahead(messages))

    def _work_ahead(self, messages: Generator[bytes, None, None]) -> _Stopped:
        try:
            for message in messages:
                if not self._put(message):
                    break
                if not self._is_worth_it():
                    return _Stopped(None, is_end=False)
            messages.close()
        except Exception as failure:  # noqa: BLE001 - the sending thread raises it, bug or not
            return _Stopped(failure, is_end=True)
        return _Stopped(None, is_end=True)

    def _put(self, message: bytes) -> bool:
        """Queue a message when there is room for it; return whether it will be sent."""
        budget_bytes = max(self._budget_bytes, self._stream.batch_bytes)
        while self._waiting_bytes >= budget_bytes:
            taken = self._taken.get()
            if taken is None:
                return False
            self._waiting_bytes -= taken
        self._waiting_bytes += len(message)
        self._made.put(message)
        return True
