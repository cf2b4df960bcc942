"""Tests of turns at sending: fair for several callers, none for one, none for who never reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from headrace.server.stream.fair_turns import _QUICK_MESSAGES, SendTurns
from support.served import TIMEOUT_S
from support.waiting import until

_NEVER_S = 3600.0


class _Client:
    """Takes the messages of its calls when it is told to, and notes whose went out."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[str] = SimpleQueue()
        self.outs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.is_active = True

    def call(self, line: str) -> _Call:
        return _Call(line, self)


class _Call:
    def __init__(self, line: str, client: _Client) -> None:
        self.line = line
        self._client = client

    @property
    def is_active(self) -> bool:
        return self._client.is_active

    def send(self, message: bytes) -> bool:
        self._client.begun.put(f"{self.line} at once, {len(message)}")
        return True

    def send_soon(self, message: bytes, on_sent: Callable[[], None]) -> bool:
        if not self.is_active:
            return False
        self._client.begun.put(f"{self.line}, {len(message)}")
        self._client.outs.put(on_sent)
        return True


def _sending(send: Callable[[bytes], bool], message: bytes) -> threading.Thread:
    thread = threading.Thread(target=send, args=(message,), daemon=True)
    thread.start()
    return thread


def test_one_caller_alone_has_no_turns() -> None:
    """Its messages are sent as they come, and again when the other caller's streams are over."""
    turns, client = SendTurns(), _Client()
    send = turns.sender(client.call("a"))
    other = turns.sender(client.call("b"))
    del other

    assert send(b"12")
    assert "a at once, 2" == client.begun.get(timeout=TIMEOUT_S)


def test_a_caller_with_many_streams_is_not_ahead_of_one_with_one() -> None:
    """Of what waits while a message is out, the next is that of the caller who was sent less."""
    turns, client = SendTurns(hold_s=_NEVER_S), _Client()
    many = [turns.sender(client.call("many")) for _ in range(4)]
    one = turns.sender(client.call("one"))
    threads = [_sending(many[0], b"1234")]
    assert "many, 4" == client.begun.get(timeout=TIMEOUT_S)
    threads += [_sending(send, b"1234") for send in many[1:]]
    assert until(lambda: len(turns._turns.of("many").waiting) == 3)
    threads.append(_sending(one, b"1"))
    assert until(lambda: len(turns._turns.of("one").waiting) == 1)

    order = []
    for _ in range(4):
        client.outs.get(timeout=TIMEOUT_S)()
        order.append(client.begun.get(timeout=TIMEOUT_S))
    client.outs.get(timeout=TIMEOUT_S)()
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert ["one, 1", "many, 4", "many, 4", "many, 4"] == order
    assert [False] * 5 == [thread.is_alive() for thread in threads]


def test_who_never_reads_keeps_no_turn() -> None:
    """A message that stays has its thread alone: others' go out, and it does when it is taken."""
    turns, client = SendTurns(hold_s=0.0), _Client()
    still, reading = turns.sender(client.call("still")), turns.sender(client.call("reading"))
    threads = [_sending(still, b"1")]
    assert "still, 1" == client.begun.get(timeout=TIMEOUT_S)
    out = client.outs.get(timeout=TIMEOUT_S)
    threads.append(_sending(reading, b"12"))
    assert "reading, 2" == client.begun.get(timeout=TIMEOUT_S)
    client.outs.get(timeout=TIMEOUT_S)()
    threads[1].join(TIMEOUT_S)

    assert [True, False] == [thread.is_alive() for thread in threads]
    out()
    threads[0].join(TIMEOUT_S)
    assert not threads[0].is_alive()
    assert 1 == turns._turns._free


def test_a_slow_client_sends_without_turns_until_it_is_quick_again() -> None:
    """After a message that stayed, some in a row must go out soon before the next takes a turn."""
    turns, client = SendTurns(hold_s=0.0), _Client()
    slow, _other = turns.sender(client.call("slow")), turns.sender(client.call("other"))
    thread = _sending(slow, b"12")
    assert "slow, 2" == client.begun.get(timeout=TIMEOUT_S)
    assert until(lambda: turns._turns._free == 1)
    client.outs.get(timeout=TIMEOUT_S)()
    thread.join(TIMEOUT_S)
    turns.hold_s = _NEVER_S

    for _ in range(_QUICK_MESSAGES):
        assert slow(b"12")
        assert "slow at once, 2" == client.begun.get(timeout=TIMEOUT_S)

    thread = _sending(slow, b"12")
    assert "slow, 2" == client.begun.get(timeout=TIMEOUT_S)
    client.outs.get(timeout=TIMEOUT_S)()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


class _OwnThreadCall(_Call):
    """Sends in the thread that asks for it, and gives up its turn before the message is out."""

    def send_soon(self, message: bytes, on_sent: Callable[[], None]) -> bool:
        on_sent()
        return super().send_soon(message, lambda: None)


def test_a_call_that_sends_in_its_own_thread_is_slow_too() -> None:
    """What counts is how long a message took, not who said that its turn is over."""
    turns, client = SendTurns(hold_s=0.0), _Client()
    slow, _other = turns.sender(_OwnThreadCall("slow", client)), turns.sender(client.call("other"))

    assert slow(b"12")
    assert slow(b"12")
    assert ["slow, 2", "slow at once, 2"] == [client.begun.get(timeout=TIMEOUT_S) for _ in range(2)]
    assert 1 == turns._turns._free


def test_a_call_that_is_over_gives_its_turn_up() -> None:
    """Nothing is sent of it, and the next message has the turn."""
    turns, client = SendTurns(hold_s=_NEVER_S), _Client()
    send, other = turns.sender(client.call("a")), turns.sender(client.call("b"))
    client.is_active = False

    assert not send(b"1")
    assert not other(b"1")
    assert 1 == turns._turns._free
