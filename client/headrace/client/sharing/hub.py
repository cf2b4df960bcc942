"""Read one stream, and hand its events to all peers of a host.

Contract:

1. Events go to each peer in the order of the stream, from the place that it names; a peer whose
   place the hub neither keeps nor reaches within `GATHER_S` is sent away, and reads alone.
2. A piece is written again only when every peer that it was announced to has said that it needs it
   no more. If a peer is lost, what it had not taken is never written again.
3. At most half of the memory holds what no peer has taken yet, so that peers that are a little
   behind find the rest. Those that are awaited find all of it for a while. A peer that holds the
   others up, and takes nothing for `_LAG_S`, is lost.
4. The end and a failure of the stream reach all peers, after the events before. A hub that ends, or
   is killed, closes its sockets: peers take what was announced, and then notice at once.
5. Only processes of the same user are peers, as the kernel tells.
6. `close` ends the stream and the thread, at once; but what is all that there is stays for those
   that are awaited.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.client.feeds.feed import Event, Feed
from headrace.client.servers.runtime_folder import Rendezvous
from headrace.client.sharing.pieces import Kind, Piece, Record, read_taken
from headrace.client.wire.assembler import BatchEvent
from headrace.errors import HeadraceError
from headrace.v1 import shard_service_pb2 as pb

GATHER_S = 2.0
"""Seconds in which peers meet: those that open a stream, change to another, or lose their hub.
Arbitrary: many times what any of it takes."""
_LAG_S = 5.0
"""Seconds for which one peer may hold up others that wait; peers that train together never do."""
_BEAT_S = 1.0
_LEAST_EVENTS, _MOST_EVENTS = 4, 32
"""How many events are kept whatever their bytes, and at most: each takes two descriptors."""
_JOIN_S = 10.0
_HELLO_BYTES, _TAKEN_BYTES = 1 << 17, 64
_NOTHING = np.empty(0, np.uint8)
_CREDENTIALS = struct.Struct("3i")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as the kernel knows them."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid


@dataclass(slots=True, eq=False)
class _Peer:
    """A process that reads from the hub: its place, or since when it waits to be given one."""

    connection: socket.socket
    since: float
    place: bytes | None = None
    is_placed: bool = False
    taken: int = 0
    moved_at: float = 0.0
    known: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Kept:
    """An event that is kept for peers, with the place after it."""

    record: Record
    piece: Piece
    after: bytes
    is_retired: bool = False

    @property
    def size(self) -> int:
        return self.record.head_bytes + self.record.payload_bytes


class Hub:
    """Owns the stream of a host, and the thread that reads it."""

    def __init__(
        self,
        meeting: Rendezvous,
        lock: int,
        *,
        place: bytes,
        budget_bytes: int,
        awaited: tuple[int, float],
        last_epoch: int,
        open_feed: Callable[[Hub], AbstractContextManager[Feed]],
    ) -> None:
        """Listen; `start` reads.

        Args:
            meeting: Where peers come to, in a folder of this user.
            lock: A descriptor of its lock, which makes this process the hub; closed at the end.
            place: Where the stream starts.
            budget_bytes: Most bytes of events to keep.
            awaited: How many peers will come, and within how many seconds; the first events are
                kept for them.
            last_epoch: The epoch with which the stream ends; -1 for none.
            open_feed: Opens the stream, whose start it tells with `begin`.

        Raises:
            OSError: The socket cannot be made.
        """
        self._meeting, self._lock, self._budget = meeting, lock, budget_bytes
        self._open_feed, self._first = open_feed, place
        self._awaited, self._patient_until = awaited[0], time.monotonic() + awaited[1]
        self._last_epoch, self._has_all = last_epoch, False
        self._start: tuple[Record, Piece] | None = None
        self._kept: deque[_Kept] = deque()
        self._free: list[Piece] = []
        self._peers: list[_Peer] = []
        self._piece_count = self._number = 0
        self._last: tuple[Record, Piece | None] | None = None
        self._beaten = 0.0
        self._closed, self._is_own = threading.Event(), True
        self._guard, self._is_over = threading.Lock(), False
        self._feed: Feed | None = None
        meeting.lease.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(meeting.lease))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._listener, selectors.EVENT_READ)
        self._ready.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="headrace-hub", daemon=True)
        _OPEN.add(self)

    def start(self) -> None:
        """Start to read, in a thread."""
        self._thread.start()

    def begin(self, start: pb.StreamStart) -> None:
        """Take the first message of the stream; for what opens it."""
        if self._start is None:
            message = pb.ReadBatchesResponse(start=start).SerializeToString()
            piece = self._written(message)
            self._start = Record(Kind.START, piece.number, 0, len(message)), piece
            for peer in list(self._peers):
                self._place(peer)

    def close(self) -> None:
        """End the stream and the thread; for the process that has made the hub."""
        if not self._is_own:
            return
        self._closed.set()
        with self._guard:
            if not self._is_over:
                os.eventfd_write(self._wake, 1)
            if self._feed is not None:
                self._feed.cancel()
        if self._thread.ident is None:
            self._hang_up()
        elif not (self._has_all and self._is_awaited):
            self._thread.join(timeout=_JOIN_S)

    def forget(self) -> None:
        """Close what a fork has copied, so that the end of the parent can be noticed."""
        self._is_own = False
        self._ready.close()
        for each in (self._listener, *(peer.connection for peer in self._peers)):
            each.close()
        for fd in (self._lock, self._wake):
            os.close(fd)
        for piece in self._pieces():
            piece.close()

    def _run(self) -> None:
        try:
            with self._open_feed(self) as feed:
                with self._guard:
                    self._feed = feed
                for event in feed.events() if not self._closed.is_set() else ():
                    self._take(event)
                    if self._closed.is_set():
                        break
            # A feed that is cancelled may end as if there were no more.
            if self._has_all or not self._closed.is_set():
                self._finish(Kind.END, self._written(b""))
        except HeadraceError as error:
            self._fail(error)
        except OSError:
            # No memory, or no descriptors: each reads alone.
            self._finish(Kind.BROKEN)
        finally:
            with self._guard:
                self._feed = None
            self._hang_up()

    @property
    def _is_awaited(self) -> bool:
        return self._awaited > 0 and time.monotonic() < self._patient_until

    def _take(self, event: Event | None) -> None:
        self._serve(0)
        if event is None:
            self._beat()
        elif isinstance(event, BatchEvent):
            header = event.header
            head, payload = header.SerializeToString(), event.payload
            if self._make_room(len(head) + payload.nbytes):
                self._announce(Kind.BATCH, head, header.resume_token, payload)
        else:
            end = pb.EpochEnd(epoch=event.epoch, resume_token=event.resume_token)
            head = end.SerializeToString()
            if self._make_room(len(head)):
                # Before a peer hears of it, and may end this process's part.
                self._has_all = event.epoch == self._last_epoch
                self._announce(Kind.EPOCH_END, head, event.resume_token)

    def _fail(self, error: HeadraceError) -> None:
        if self._closed.is_set() and not self._has_all:
            return
        said = [error.reason, error.message, {k: str(v) for k, v in error.metadata.items()}]
        try:
            if self._closed.is_set():
                self._finish(Kind.END, self._written(b""))
            else:
                self._finish(Kind.FAILURE, self._written(json.dumps(said).encode()))
        except OSError:
            self._finish(Kind.BROKEN)

    def _finish(self, kind: Kind, piece: Piece | None = None) -> None:
        """Tell all peers how the stream ended; after a regular end, wait for those to come."""
        number, size = (0, 0) if piece is None else (piece.number, piece.size)
        self._last = Record(kind, number, self._number + 1, size), piece
        for peer in list(self._peers):
            if peer.is_placed or kind != Kind.END:
                self._send(peer, *self._last)
        # After a failure the next hub tries again; but this process has to hear of it.
        until = math.inf if kind == Kind.END else time.monotonic() + GATHER_S
        while not self._closed.is_set() and time.monotonic() < until:
            self._serve(_BEAT_S)
        # The wake-up stays readable, so this looks 50 times a second.
        while kind == Kind.END and self._is_awaited:
            self._serve(0)
            time.sleep(1 / 50)

    def _written(self, head: bytes, payload: NDArray[np.uint8] = _NOTHING) -> Piece:
        if self._free:
            piece = self._free.pop()
        else:
            self._piece_count += 1
            piece = Piece(self._piece_count)
        piece.write(head, payload)
        return piece

    def _announce(
        self, kind: Kind, head: bytes, after: bytes, payload: NDArray[np.uint8] = _NOTHING
    ) -> None:
        piece = self._written(head, payload)
        self._number += 1
        record = Record(kind, piece.number, self._number, len(head), payload.nbytes)
        self._kept.append(_Kept(record, piece, after))
        for peer in [each for each in self._peers if each.is_placed]:
            self._send(peer, record, piece)
        for peer in [each for each in self._peers if each.place == after and not each.is_placed]:
            self._place(peer)

    def _send(self, peer: _Peer, record: Record, piece: Piece | None = None) -> None:
        fds = []
        if piece is not None and piece.number not in peer.known:
            peer.known.add(piece.number)
            fds.append(piece.shown)
        try:
            socket.send_fds(peer.connection, [record.packed()], fds, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if record.kind != Kind.BEAT:
                self._lose(peer)
        except OSError:
            self._lose(peer)

    # Peers come and go.

    def _serve(self, wait_s: float) -> None:
        """Take what peers say, for as long as nobody says anything."""
        for key, _ in self._ready.select(wait_s):
            if key.data is not None:
                self._hear(key.data)
            elif key.fileobj is self._listener:
                self._accept()
        now = time.monotonic()
        for peer in [each for each in self._peers if not each.is_placed]:
            if now - peer.since > GATHER_S and self._start is not None:
                self._send(peer, Record(Kind.AWAY))
                self._lose(peer)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if peer_of(connection)[1] != os.geteuid():
                connection.close()
                return
            connection.setblocking(False)
            peer = _Peer(connection, time.monotonic())
            self._peers.append(peer)
            self._ready.register(connection, selectors.EVENT_READ, peer)

    def _hear(self, peer: _Peer) -> None:
        try:
            said = peer.connection.recv(_HELLO_BYTES if peer.place is None else _TAKEN_BYTES)
            if said and peer.place is None:
                peer.place = said
                self._place(peer)
                return
            if said:
                peer.taken = max(peer.taken, min(read_taken(said), self._number))
                peer.moved_at = time.monotonic()
                return
        except BlockingIOError:
            return
        except (OSError, ValueError):
            pass
        self._lose(peer)

    def _place(self, peer: _Peer) -> None:
        """Send a peer what follows its place, if that is known."""
        if peer.place is None or self._start is None:
            self._tell_failure(peer)
            return
        kept = list(self._kept)
        first = self._first if self._number == len(kept) else None
        starts = [first, *(each.after for each in kept)]
        # The newest place of that name: after the end of an epoch, which the peer has noticed.
        index = max((at for at, each in enumerate(starts) if each == peer.place), default=None)
        if index is None:
            self._tell_failure(peer)
            return
        self._awaited -= 1
        peer.is_placed, peer.moved_at = True, time.monotonic()
        peer.taken = self._number - len(kept) + index
        self._send(peer, *self._start)
        for each in kept[index:]:
            self._send(peer, each.record, each.piece)
        if self._last is not None:
            self._send(peer, *self._last)

    def _tell_failure(self, peer: _Peer) -> None:
        if self._last is not None and self._last[0].kind != Kind.END:
            self._send(peer, *self._last)

    def _lose(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._ready.unregister(peer.connection)
        peer.connection.close()
        if peer.is_placed:
            for each in self._kept:
                # It may be copying from it at this moment.
                each.is_retired |= each.record.number > peer.taken

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= _BEAT_S:
            self._beaten = now
            for peer in list(self._peers):
                if not peer.is_placed or peer.taken >= self._number:
                    self._send(peer, Record(Kind.BEAT))

    # Memory.

    def _make_room(self, size: int) -> bool:
        """Wait for memory; return False if this was closed meanwhile."""
        held_since: float | None = None
        while not self._closed.is_set():
            self._evict(size)
            if self._has_room(size):
                return True
            placed = [peer for peer in self._peers if peer.is_placed]
            now = time.monotonic()
            if not any(peer.taken >= self._number for peer in placed):
                held_since = None
            elif held_since is None:
                held_since = now
            elif now - held_since > _LAG_S:
                for peer in placed:
                    is_last = peer.taken < self._kept[0].record.number
                    if is_last and now - peer.moved_at > _LAG_S:
                        self._lose(peer)
            self._serve(_BEAT_S / 2)
            self._beat()
        return False

    def _has_room(self, size: int) -> bool:
        fastest = max((peer.taken for peer in self._peers if peer.is_placed), default=0)
        ahead = [each.size for each in self._kept if each.record.number > fastest]
        may_lead = len(ahead) < _LEAST_EVENTS // 2 or (
            2 * (sum(ahead) + size) <= self._budget and 2 * len(ahead) < _MOST_EVENTS
        )
        return may_lead and self._fits(size)

    def _fits(self, size: int) -> bool:
        count, total = len(self._kept), sum(each.size for each in self._kept)
        return count < _LEAST_EVENTS or (total + size <= self._budget and count < _MOST_EVENTS)

    def _evict(self, size: int) -> None:
        if self._is_awaited:
            return
        slowest = min((peer.taken for peer in self._peers if peer.is_placed), default=self._number)
        while self._kept and not self._fits(size) and self._kept[0].record.number <= slowest:
            gone = self._kept.popleft()
            if not gone.is_retired:
                self._free.append(gone.piece)
                continue
            for peer in [each for each in self._peers if gone.piece.number in each.known]:
                self._send(peer, Record(Kind.GONE, gone.piece.number))
            gone.piece.close()

    def _hang_up(self) -> None:
        self._serve_no_more()
        # Whoever has the lock next makes both files again.
        for path in (self._meeting.lease, self._meeting.lock):
            path.unlink(missing_ok=True)
        os.close(self._lock)

    def _serve_no_more(self) -> None:
        with self._guard:
            self._is_over = True
            os.close(self._wake)
        for peer in list(self._peers):
            self._lose(peer)
        self._ready.close()
        self._listener.close()
        for piece in self._pieces():
            piece.close()
        _OPEN.discard(self)

    def _pieces(self) -> list[Piece]:
        own = [found[1] for found in (self._start, self._last) if found is not None]
        kept = (each.piece for each in self._kept)
        return [each for each in (*self._free, *kept, *own) if each is not None]


def _forget_in_all() -> None:
    for hub in list(_OPEN):
        hub.forget()
    _OPEN.clear()


_OPEN: weakref.WeakSet[Hub] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_in_all)
