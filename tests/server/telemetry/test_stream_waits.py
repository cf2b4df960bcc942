"""What a stream did while it had nothing to send is put down to its causes."""

from __future__ import annotations

import time
from hashlib import pbkdf2_hmac
from types import SimpleNamespace

import pytest

from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.stream_counts import StreamTally
from headrace.server.telemetry.stream_waits import ReadTimes, Stalls, Waits, shared_out


@pytest.mark.parametrize(
    ("grown", "behind_s", "stalled_s", "expected"),
    [
        (Waits(2.0, 1.0), 3.5, 0.0, (2.0, 1.0, 0.5)),
        # The process got no processor for most of the wait, which was not the store's.
        (Waits(3.0, 0.0), 3.0, 3.0, (0.0, 0.0, 3.0)),
        (Waits(4.0, 4.0), 8.0, 4.0, (2.0, 2.0, 4.0)),
        # It could not send what it had.
        (Waits(0.0, 0.0), 0.0, 5.0, (0.0, 0.0, 5.0)),
        (Waits(0.0, 0.0), 0.0, 0.0, (0.0, 0.0, 0.0)),
    ],
)
def test_time_without_a_processor_is_the_servers(
    grown: Waits, behind_s: float, stalled_s: float, expected: tuple[float, float, float]
) -> None:
    """Whatever else seems to take as long then."""
    assert expected == shared_out(grown, behind_s, stalled_s)


def test_reads_are_told_from_decoding() -> None:
    """By what the reading thread needed a processor for."""
    reads = ReadTimes()
    reads.note("slow", 0.0)
    for _ in range(3):
        time.sleep(0.05)
        reads.note("slow", 0.05)
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pbkdf2_hmac("sha256", b"", b"", 1000)
    reads.note("busy", 0.1)

    assert reads.decode_share("slow") < 0.5
    assert reads.decode_share("busy") > 0.8
    assert reads.decode_share("slow") < reads.decode_share("unknown") < 1
    assert 0.0 == ReadTimes().decode_share("any")


def test_a_stream_owes_an_account_of_what_is_worth_it() -> None:
    """Once, and not of time in which its client had something to read."""
    metrics = Metrics()
    tally = StreamTally(metrics.streams, "red", 0)
    tally.begin()

    def made() -> object:
        yield b"one"
        tally.starving(time.monotonic())
        time.sleep(0.1)
        tally.starved(seconds=0.1)
        owed = tally.owed()
        assert owed is not None
        assert 0.09 < owed.store_s < 0.2
        assert tally.owed() is None
        yield b"two"

    for _ in tally.timed(made(), taken=lambda _: None):  # type: ignore[arg-type] # a generator
        time.sleep(0.1)
    assert tally.owed() is None
    (row,) = metrics.streams.rows()
    assert 0.09 < row["store_wait_s"] < 0.2 < 0.8 * row["client_wait_s"] + 0.1
    assert row["server_wait_s"] < 0.1


def test_a_full_ring_is_the_clients_wait() -> None:
    """Not time in which there was nothing to send."""
    metrics = Metrics()
    tally = StreamTally(metrics.streams, "red", 0)
    tally.begin()

    def made() -> object:
        tally.blocked(time.monotonic())
        time.sleep(0.1)
        tally.blocked(None)
        assert tally.owed() is None
        yield b"one"

    assert 1 == len(list(tally.timed(made(), taken=lambda _: None)))  # type: ignore[arg-type] # a generator
    (row,) = metrics.streams.rows()
    assert 0.09 < row["client_wait_s"]
    assert row["server_wait_s"] < 0.09


def test_a_thread_that_oversleeps_got_no_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the moment at which it should have run, without what other threads got."""
    calls: list[None] = []
    stalls = Stalls(lambda: calls.append(None), every_s=3.0)
    now = iter([0.0, 0.1, 3.2, 3.3])
    spent = iter([0.0, 0.0, 0.5, 0.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    monkeypatch.setattr(time, "process_time", lambda: next(spent))
    waits = iter([False, False, False, True])
    monkeypatch.setattr(
        stalls, "_running", SimpleNamespace(acquire=lambda timeout: timeout > 1 or next(waits))
    )
    stalls._run()

    assert 2.5 == pytest.approx(stalls.seconds)
    assert [None] == calls
