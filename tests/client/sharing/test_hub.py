"""Claims about the process that reads for its host: who may come, and what it writes again."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from headrace.client.feeds.feed import Event
from headrace.client.servers.runtime_folder import Rendezvous, try_lock
from headrace.client.sharing import hub as hub_module
from headrace.client.sharing.hub import Hub
from headrace.client.sharing.pieces import Kind, Record, receive, taken
from headrace.client.wire.assembler import BatchEvent, EpochEndEvent
from headrace.v1 import shard_service_pb2 as pb
from support.waiting import until

SIZE = 1 << 16
START = b"start"


class _Counting:
    """A feed of batches that are full of their own number."""

    def __init__(self, hub: Hub, count: int, pause_s: float, *, ends: bool) -> None:
        self._hub, self._count, self._pause_s, self._ends = hub, count, pause_s, ends
        self._is_cancelled = False

    def events(self) -> Iterator[Event | None]:
        """Yield them."""
        self._hub.begin(pb.StreamStart())
        for number in range(1, self._count + 1):
            if self._is_cancelled:
                return
            time.sleep(self._pause_s)
            header = pb.BatchHeader(resume_token=str(number).encode())
            yield BatchEvent(header, {}, np.full(SIZE, number % 251, np.uint8))
        if self._ends:
            yield EpochEndEvent(0, str(self._count).encode())

    def cancel(self) -> None:
        """End the feed."""
        self._is_cancelled = True


@contextmanager
def _hub(
    folder: Path, count: int = 200, *, peers: int = 1, pause_s: float = 0.0, ends: bool = False
) -> Iterator[Path]:
    meeting = Rendezvous(folder, "key")

    @contextmanager
    def opened(hub: Hub) -> Iterator[_Counting]:
        yield _Counting(hub, count, pause_s, ends=ends)

    lock = try_lock(meeting.lock)
    assert lock is not None
    hub = Hub(
        meeting,
        lock,
        place=START,
        budget_bytes=4 * SIZE,
        awaited=(peers, 1.0),
        last_epoch=0,
        open_feed=opened,
    )
    hub.start()
    try:
        yield meeting.lease
    finally:
        hub.close()


class _Peer:
    """A process that takes records, as slowly as it is told."""

    def __init__(self, path: Path, place: bytes = START) -> None:
        self.wire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.wire.settimeout(20)
        self.wire.connect(str(path))
        self.wire.send(place)
        self.fds: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.wire.close()
        for fd in self.fds.values():
            os.close(fd)

    def is_over(self) -> bool:
        """Return whether there are no more records."""
        return self.said() is None

    def next(self) -> Record:
        """Return a record that must come."""
        record = self.said()
        assert record is not None
        return record

    def said(self) -> Record | None:
        """Return the next record that is no sign of life, None at the end."""
        while True:
            record, fd = receive(self.wire)
            if record is not None and fd >= 0:
                self.fds[record.piece] = fd
            if record is None or record.kind not in (Kind.BEAT, Kind.GONE):
                return record

    def content(self, record: Record) -> int:
        """Return what a batch is full of."""
        found = np.frombuffer(os.pread(self.fds[record.piece], SIZE, record.head_bytes), np.uint8)
        assert SIZE == found.size
        assert (found == found[0]).all()
        return int(found[0])


def test_what_a_lost_peer_may_still_read_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that takes nothing is lost; what it was told of stays as it is."""
    monkeypatch.setattr(hub_module, "_LAG_S", 0.3)
    with _hub(tmp_path, peers=2) as path, _Peer(path) as slow, _Peer(path) as fast:
        assert Kind.START == fast.next().kind
        for number in range(1, 201):
            record = fast.next()
            assert (Kind.BATCH, number) == (record.kind, record.number)
            assert number % 251 == fast.content(record)
            fast.wire.send(taken(number))
        assert Kind.END == fast.next().kind

        assert Kind.START == slow.next().kind
        told = []
        while (said := slow.said()) is not None:
            told.append(said.number)
            assert said.number % 251 == slow.content(said)
        assert list(range(1, len(told) + 1)) == told
        assert 2 <= len(told) < 40


def test_a_peer_that_is_a_little_late_finds_what_the_first_has_taken(tmp_path: Path) -> None:
    """From the place that it names; one at another place is sent away."""
    with _hub(tmp_path, 100) as path, _Peer(path) as first:
        assert Kind.START == first.next().kind
        for number in range(1, 21):
            assert number == first.next().number
            first.wire.send(taken(number))
        with _Peer(path, b"19") as late, _Peer(path, b"3") as lost:
            assert Kind.START == late.next().kind
            record = late.next()
            assert 20 == record.number == late.content(record)
            assert Kind.AWAY == lost.next().kind
            assert lost.is_over()


def test_peers_have_two_seconds_to_meet(tmp_path: Path) -> None:
    """Batches are kept for those that are awaited."""
    with _hub(tmp_path, 100, peers=2) as path, _Peer(path) as first:
        assert Kind.START == first.next().kind
        began = time.monotonic()
        for number in range(1, 20):
            assert number == first.next().number
            first.wire.send(taken(number))
        assert time.monotonic() - began > 0.5


def test_a_hub_that_is_closed_does_not_say_that_the_stream_has_ended(tmp_path: Path) -> None:
    """Though its feed ends when it is cancelled; peers go on at the place they have got to."""
    with ExitStack() as stack:
        with _hub(tmp_path, 1000, pause_s=0.01) as path:
            peer = stack.enter_context(_Peer(path))
            assert [Kind.START, Kind.BATCH] == [peer.next().kind for _ in range(2)]
        kinds = set()
        while (said := peer.said()) is not None:
            kinds.add(said.kind)
        assert kinds <= {Kind.BATCH}


def test_a_peer_is_placed_once(tmp_path: Path) -> None:
    """The end of an epoch has the token of its last batch."""
    with (
        _hub(tmp_path, 3, pause_s=0.2, ends=True) as path,
        _Peer(path) as first,
        _Peer(path, b"3") as peer,
    ):
        assert Kind.START == first.next().kind
        for number in range(1, 5):
            assert number == first.next().number
            first.wire.send(taken(number))
        found = [peer.next().kind for _ in range(2)]
        # Which comes next depends on when it was placed; a second start never does.
        if found[1] == Kind.EPOCH_END:
            found.append(peer.next().kind)
        assert Kind.START == found[0]
        assert Kind.END == found[-1]


def test_all_that_there_is_stays_for_those_that_are_awaited(tmp_path: Path) -> None:
    """Though the process that reads is done with it."""
    with ExitStack() as stack:
        with _hub(tmp_path, 3, peers=2, ends=True) as path:
            first = stack.enter_context(_Peer(path))
            assert Kind.START == first.next().kind
            for number in range(1, 5):
                assert number == first.next().number
                first.wire.send(taken(number))
        late = stack.enter_context(_Peer(path))
        kinds = [late.next().kind for _ in range(6)]
        assert [Kind.START, *[Kind.BATCH] * 3, Kind.EPOCH_END, Kind.END] == kinds
        assert late.is_over()
        # The socket is closed first, and its file removed then.
        assert until(lambda: not path.exists())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_shown_nothing(tmp_path: Path) -> None:
    """Even where the folder and the socket let him in."""
    with _hub(tmp_path) as path:
        for each in (path, *path.parents[: len(path.parents) - 2]):
            each.chmod(0o777)
        pid = os.fork()
        if not pid:
            os.setresuid(65534, 65534, 65534)
            try:
                os._exit(0 if _Peer(path).is_over() else 1)
            except ConnectionError:
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the parent judges
                os._exit(2)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Nothing that others could open, and nothing that peers could write to.
        with _Peer(path) as peer:
            assert Kind.START == peer.next().kind
            [fd] = peer.fds.values()
            assert 0o600 == os.fstat(fd).st_mode & 0o777
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(fd, b"x")
