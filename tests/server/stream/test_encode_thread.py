"""Claims about messages that are worked out ahead: the contract of `encode_thread`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator

import pytest

from headrace.errors import RebalanceError
from headrace.server.stream.encode_thread import MessagesAhead
from support.no_threads import no_threads

_WAIT_S = 30


class _Stream:
    """Yields what it is given until it is cancelled."""

    def __init__(self, make: Callable[[_Stream], Generator[bytes, None, None]]) -> None:
        self._make = make
        self.cancelled = threading.Event()
        self.closed = threading.Event()
        self.made = 0
        # The first message is a batch.
        self.batch_bytes = 1
        self.grown = threading.Condition()

    def messages(self) -> Generator[bytes, None, None]:
        try:
            for message in self._make(self):
                with self.grown:
                    self.made += 1
                    self.grown.notify_all()
                yield message
        finally:
            self.closed.set()

    def cancel(self) -> None:
        self.cancelled.set()

    def wait_made(self, count: int) -> bool:
        """Wait until so many messages were made; return whether they were."""
        with self.grown:
            return self.grown.wait_for(lambda: self.made >= count, _WAIT_S)


def _endless(_stream: _Stream) -> Generator[bytes, None, None]:
    while True:
        yield bytes(100)


def _ahead_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "headrace-ahead"]


def test_messages_come_in_order() -> None:
    """All messages come out, once, in the order in which they were made."""
    wanted = [str(index).encode() for index in range(500)]
    ahead = MessagesAhead(_Stream(lambda _: (message for message in wanted)), budget_bytes=20)

    assert wanted == list(ahead.messages())


def test_a_failure_comes_after_what_was_made() -> None:
    """A failure is raised behind the messages before it, and ends the thread."""

    def fail(_stream: _Stream) -> Generator[bytes, None, None]:
        yield b"one"
        yield b"two"
        raise RebalanceError("go elsewhere")

    messages = MessagesAhead(_Stream(fail)).messages()

    assert [b"one", b"two"] == [next(messages), next(messages)]
    with pytest.raises(RebalanceError):
        next(messages)
    assert not _ahead_threads()


def test_without_a_thread_messages_are_made_where_they_are_sent() -> None:
    """As long as none can be started; then the rest is made ahead, and all come in order."""
    threads: list[str] = []

    def number(_stream: _Stream) -> Generator[bytes, None, None]:
        for index in range(6):
            threads.append(threading.current_thread().name)
            yield str(index).encode()

    messages = MessagesAhead(_Stream(number)).messages()
    with no_threads():
        first = [next(messages) for _ in range(3)]
    rest = list(messages)

    assert [b"0", b"1", b"2", b"3", b"4", b"5"] == first + rest
    assert [threading.current_thread().name] * 3 == threads[:3]
    assert ["headrace-ahead"] * 3 == threads[3:]
    assert not _ahead_threads()


def test_without_a_thread_a_stream_ends_and_fails_all_the_same() -> None:
    """The failure comes after what was made before it."""

    def fail(_stream: _Stream) -> Generator[bytes, None, None]:
        yield b"one"
        raise RebalanceError("go elsewhere")

    with no_threads():
        assert [b"one"] == list(
            MessagesAhead(_Stream(lambda _: (one for one in [b"one"]))).messages()
        )
        messages = MessagesAhead(_Stream(fail)).messages()
        assert b"one" == next(messages)
        with pytest.raises(RebalanceError):
            next(messages)


def test_messages_are_made_before_they_are_asked_for() -> None:
    """While one message is sent the next ones are made, up to the budget and one."""
    stream = _Stream(_endless)
    messages = MessagesAhead(stream, budget_bytes=250).messages()

    for _ in range(3):
        next(messages)

    # Three were taken; 300 bytes wait; one more is made and finds no room.
    assert stream.wait_made(7)
    messages.close()
    assert stream.made == 7


def test_a_whole_batch_is_made_before_it_is_asked_for() -> None:
    """While a batch of many messages is sent the next one is made, whatever the budget."""
    stream = _Stream(_endless)
    stream.batch_bytes = 800
    messages = MessagesAhead(stream, budget_bytes=250).messages()

    for _ in range(10):
        next(messages)

    # A first batch and two messages were taken; 800 bytes wait; one more finds no room.
    assert stream.wait_made(19)
    messages.close()
    assert stream.made == 19


def test_a_first_batch_goes_out_alone() -> None:
    """While it and the next message are sent nothing else is made, and no thread starts."""
    stream = _Stream(_endless)
    stream.batch_bytes = 800
    messages = MessagesAhead(stream, budget_bytes=250).messages()

    for _ in range(9):
        next(messages)

    assert stream.made == 9
    assert not _ahead_threads()
    messages.close()


def test_messages_change_hands_between_two_of_them() -> None:
    """All messages come out, once and in order, however often a thread turns out worth it or not.

    Each is made by the thread beside while that is worth it, and by the one that sends while not.
    """
    makers: list[bool] = []

    def make(_stream: _Stream) -> Generator[bytes, None, None]:
        for index in range(600):
            makers.append(threading.current_thread() is threading.main_thread())
            yield b"%03d" % index

    worth_it = threading.Event()
    stream = _Stream(make)
    messages = MessagesAhead(stream, budget_bytes=1, is_worth_it=worth_it.is_set).messages()
    received = []
    for index in range(600):
        if not index % 50:
            (worth_it.clear if worth_it.is_set() else worth_it.set)()
        received.append(next(messages))

    assert [b"%03d" % index for index in range(600)] == received
    assert [] == list(messages)
    assert stream.closed.is_set()
    assert not _ahead_threads()
    # At most two are made ahead, so at the end of each fifty the change is over.
    assert ([False] * 5 + [True] * 5) * 6 == [
        maker for start in range(0, 600, 50) for maker in makers[start + 40 : start + 45]
    ]


def test_a_stream_that_has_changed_hands_can_be_closed() -> None:
    """Where the sending thread makes the messages, closing ends the stream all the same."""
    worth_it = threading.Event()
    worth_it.set()
    stream = _Stream(_endless)
    messages = MessagesAhead(stream, budget_bytes=250, is_worth_it=worth_it.is_set).messages()
    for _ in range(3):
        next(messages)
    worth_it.clear()
    for _ in range(10):
        next(messages)
    assert not _ahead_threads()

    messages.close()

    assert stream.closed.is_set()


def test_closing_leaves_nothing_behind() -> None:
    """A generator closed in the middle cancels its stream and joins its thread."""
    stream = _Stream(_endless)
    messages = MessagesAhead(stream, budget_bytes=250).messages()
    for _ in range(3):
        next(messages)

    messages.close()

    assert stream.cancelled.is_set()
    assert stream.closed.is_set()
    assert not _ahead_threads()


def test_cancel_ends_a_thread_that_waits_for_room() -> None:
    """A client that goes while nothing is taken does not keep the stream open."""
    stream = _Stream(_endless)
    ahead = MessagesAhead(stream, budget_bytes=250)
    messages = ahead.messages()
    for _ in range(3):
        next(messages)
    assert stream.wait_made(7)

    ahead.cancel()

    assert stream.closed.wait(_WAIT_S)
    messages.close()
