"""The stream of one process, and what becomes of it in another one."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Generator

from headrace.client.api.live_stream import LiveStream
from headrace.client.feeds.feed import Event
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.transport import Transport
from headrace.client.reader.hedging import HedgeCounts


class _Telling:
    """A reader that does not end, and tells a pipe that it is closed, and that it has ended."""

    reconnect_count = 0
    hedges = HedgeCounts()

    def __init__(self, told: int) -> None:
        self._told = told
        self.clock = HopClock()

    def events(self) -> Generator[Event, None, None]:
        try:
            while True:
                yield object()  # type: ignore[misc] # events of any kind
        finally:
            os.write(self._told, b"ended ")

    def close(self) -> None:
        os.write(self._told, b"closed ")


def test_a_forked_process_leaves_the_stream_of_its_parent_alone() -> None:
    """It may drop the dataset, or end; only the parent closes the connection, and its ring."""
    source, told = os.pipe()
    live = LiveStream(Transport())
    event = live.next_event(lambda _: _Telling(told))  # type: ignore[arg-type, return-value] # all that is called of a reader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that a fork loses: that is the question
        child = os.fork()
    if not child:
        del live
        gc.collect()
        os.write(told, b"dropped ")
        os._exit(0)
    os.waitpid(child, 0)
    del live
    gc.collect()
    os.close(told)

    assert event is not None
    assert b"dropped closed ended " == os.read(source, 100)
    os.close(source)
