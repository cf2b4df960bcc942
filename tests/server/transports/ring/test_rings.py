"""Tests of the server's side of a ring: who gets one, how large, and what its memory does."""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgumentError, NoTransportError
from headrace.ring import RecordKind, RecordReader, read_hello, record, ring_socket_of
from headrace.server.access.callers import ANYBODY, Caller
from headrace.server.batch.payload_out import payload_out
from headrace.server.batch.targets import ClientGoneError
from headrace.server.settings.server_config import ServerConfig
from headrace.server.shares import Budget, Share
from headrace.server.stream.fair_turns import SendTurns
from headrace.server.stream.stream_setup import Contents
from headrace.server.stream.tickets import Ticket
from headrace.server.stream.transport_plugs import Attaching
from headrace.server.telemetry.metrics import Metrics
from headrace.server.transports.ring.channel import RingChannel
from headrace.server.transports.ring.listener import RingDoor
from headrace.server.transports.ring.memory import RingMemory
from headrace.server.transports.ring.outlet import RingOutlet
from headrace.server.transports.ring.rings import Rings
from headrace.server.transports.ring.size import ring_size
from headrace.v1 import ring_pb2
from headrace.v1 import shard_service_pb2 as pb
from support.no_descriptors import no_descriptors

_MIB = 1 << 20
_PAYLOAD = 1000
_LOOKS_S = 1.5


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as path:
        yield Path(path)


def _come(path: Path, said: bytes = b"") -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(path))
    if said:
        client.sendall(said)
    return client


def test_a_ticket_is_good_once(folder: Path) -> None:
    """Whoever brings it is handed to the stream that waits; who brings it again is told."""
    ticket = Ticket()
    with closing(RingDoor(str(folder / "r"), mode=0o600, uids={os.getuid()})) as door:
        door.start()
        door.tickets.admit(ticket)
        with _come(folder / "r", ticket.secret) as client:
            met = ticket.wait()
            assert met is not None
            with met, _come(folder / "r", ticket.secret) as second:
                met.sendall(b"met")
                assert b"met" == client.recv(3)
                with pytest.raises(NoTransportError, match="was used before"):
                    read_hello(second.recv(1024))

    assert not (folder / "r").exists()


@pytest.mark.parametrize("size", [1 << 60, -1], ids=["unmapped", "unsized"])
def test_memory_that_cannot_be_had_leaves_no_descriptor(size: int) -> None:
    """More than the system maps, or than a file may have."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match=r"memory|argument"):
        RingMemory(size)

    assert before == len(list(Path("/proc/self/fd").iterdir()))


class _Call:
    """A call over the unix socket that does not end."""

    caller: Caller = ANYBODY
    peer, host, line = "unix:", "unix", ""
    metadata: Sequence[tuple[str, str | bytes]] = ()
    certificate, is_active = b"", True

    def on_end(self, callback: Callable[[], None], /) -> bool:
        """Never call back."""
        del callback
        return True


def test_a_client_that_is_gone_leaves_no_ring(folder: Path) -> None:
    """It came for its ring and went before it had it: memory and descriptors are given back."""
    path = str(folder / "s")
    config = ServerConfig(datasets={"d": "unused"}, listen=f"unix:{path}")
    rings = Rings(config, Metrics())
    contents = Contents(
        title="",
        start=pb.StreamStart(),
        columns=(),
        plans=iter(()),
        max_chunk_bytes=1 << 20,
        row_count=0,
        shown_ids=lambda ids: ids,
        blocks=Mock(),
        writer=Mock(),
    )
    with closing(rings):
        rings.listen([f"unix:{path}"])
        attaching = rings.attach(
            ring_pb2.Ring(ring_bytes=1 << 20),
            Attaching(_Call(), contents, Share(Budget(1 << 30)), SendTurns().sender),
        )
        offer = next(attaching)
        assert isinstance(offer, ring_pb2.RingOffer)
        _come(Path(ring_socket_of(path)), offer.ticket).close()
        before = _ring_descriptors()
        with pytest.raises(NoTransportError, match="no ring could be made"):
            next(attaching)

    assert before == _ring_descriptors()


def _ring_descriptors() -> int:
    """Count the rings' memory that this process has open."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        # What other threads close meanwhile is none.
        with suppress(FileNotFoundError):
            count += "headrace-ring" in str(descriptor.readlink())
    return count


def test_another_user_is_told(folder: Path) -> None:
    """The kernel says who comes, and the answer says which setting would let him in."""
    with closing(RingDoor(str(folder / "r"), mode=0o666, uids={os.getuid() + 1})) as door:
        door.start()
        with (
            _come(folder / "r") as client,
            pytest.raises(NoTransportError, match=f"user {os.getuid()} .*--ring-uids"),
        ):
            read_hello(client.recv(1024))


def test_a_client_without_a_descriptor_is_accepted_later(folder: Path) -> None:
    """Until there is one, the listener rests: its thread takes next to no processor time."""
    ticket = Ticket()
    with (
        closing(RingDoor(str(folder / "r"), mode=0o600, uids={os.getuid()})) as door,
        closing(socket.socket(socket.AF_UNIX)) as client,
    ):
        door.start()
        door.tickets.admit(ticket)
        (thread,) = [one for one in threading.enumerate() if one.name == "headrace-ring-door"]
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        with no_descriptors():
            client.connect(str(folder / "r"))
            client.sendall(ticket.secret)
            before_s = time.clock_gettime(clock)
            threading.Event().wait(_LOOKS_S)
            used_s = time.clock_gettime(clock) - before_s
        met = ticket.wait()

        assert met is not None
        met.close()
        assert used_s < _LOOKS_S / 20


def test_who_says_nothing_holds_up_nobody(folder: Path) -> None:
    """A client that connects and stays silent is passed by those behind it."""
    ticket = Ticket()
    with closing(RingDoor(str(folder / "r"), mode=0o600, uids={os.getuid()})) as door:
        door.start()
        door.tickets.admit(ticket)
        with _come(folder / "r"), _come(folder / "r", ticket.secret):
            met = ticket.wait()
            assert met is not None
            met.close()


def test_a_closed_door_ends_all_waits(folder: Path) -> None:
    """A stream that waits for its client hears of it at once, and no other begins to wait."""
    ticket = Ticket()
    door = RingDoor(str(folder / "r"), mode=0o600, uids={os.getuid()})
    door.start()
    door.tickets.admit(ticket)

    door.close()

    assert ticket.wait() is None
    with pytest.raises(NoTransportError, match="shutting down"):
        door.tickets.admit(ticket)


@pytest.mark.parametrize(
    ("limit", "open_bytes", "size", "said"),
    [
        (None, 0, 64 * _MIB, ""),
        (1024 * _MIB, 0, 64 * _MIB, ""),
        (512 * _MIB, 128 * _MIB, 32 * _MIB, "raise the limit, or lower --cache-bytes"),
    ],
)
def test_a_ring_is_as_large_as_the_container_allows(
    limit: int | None, open_bytes: int, size: int, said: str
) -> None:
    """A quarter of what the limit leaves beside the cache and other rings, with the remedy."""
    found = ring_size(
        64 * _MIB, most=256 * _MIB, limit=limit, cache_bytes=256 * _MIB, open_bytes=open_bytes
    )

    assert size == found.size
    assert said in found.warning
    assert bool(said) == bool(found.warning)


@pytest.mark.parametrize(
    ("wanted", "batch", "limit", "size"),
    [
        (0, 0, None, 128 * _MIB),
        (0, 80 * _MIB, None, 3 * 80 * _MIB + 3 * (64 << 10)),
        (0, 800 * _MIB, None, 256 * _MIB),
        (64 * _MIB, 80 * _MIB, None, 64 * _MIB),
        (0, 80 * _MIB, 256 * _MIB + 4 * 160 * _MIB, 160 * _MIB),
        (64 * _MIB, 80 * _MIB, 256 * _MIB + 4 * 160 * _MIB, 64 * _MIB),
    ],
)
def test_a_ring_of_the_servers_choice_holds_three_batches(
    wanted: int, batch: int, limit: int | None, size: int
) -> None:
    """Where nothing forbids it; a client that names a size gets that, and nobody is warned."""
    found = ring_size(
        wanted,
        most=256 * _MIB,
        limit=limit,
        cache_bytes=256 * _MIB,
        open_bytes=0,
        batch_bytes=batch,
    )

    assert size == found.size
    assert not found.warning


def test_a_container_without_room_has_no_ring() -> None:
    """The refusal names the limit, the cache and the remedy."""
    with pytest.raises(NoTransportError, match=r"limit of 256 MiB leaves 0 MiB .*raise"):
        ring_size(
            64 * _MIB, most=256 * _MIB, limit=256 * _MIB, cache_bytes=2048 * _MIB, open_bytes=0
        )


def test_the_size_of_a_ring_is_sealed() -> None:
    """Neither side can make the other fault, nor undo the seal."""
    with closing(RingMemory(_MIB)) as memory:
        for size in (0, 2 * _MIB):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.shared.fd, size)


# A busy machine may stop a test for longer than any deadline.
@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300_000)), max_size=40))
def test_slots_in_use_never_overlap(steps: list[tuple[bool, int]]) -> None:
    """Whatever is lent and released, and generations only rise."""
    with closing(RingMemory(_MIB)) as memory:
        lent: list[tuple[int, int, int]] = []
        newest = 0
        for is_take, number in steps:
            if is_take and (slot := memory.take(number)) is not None:
                assert slot[1] > newest
                newest = slot[1]
                lent.append((slot[0], slot[0] + number, slot[1]))
            elif not is_take and lent:
                start, _, generation = lent.pop(number % len(lent))
                memory.give(start, generation)
            spans = sorted(lent)
            assert all(one[1] <= next_[0] for one, next_ in itertools.pairwise(spans))
            assert len(lent) == memory.lent_count


@pytest.mark.parametrize(("start", "generation"), [(0, 2), (64, 1), (2**63, 1)])
def test_a_release_of_what_was_not_lent_is_refused(start: int, generation: int) -> None:
    """A wrong generation, a place in the middle, and one outside."""
    with closing(RingMemory(_MIB)) as memory:
        assert memory.take(1000) == (0, 1)

        with pytest.raises(BadArgumentError, match=f"with generation {generation}; it has"):
            memory.give(start, generation)


class _Ring:
    """An outlet and its client."""

    def __init__(self, size: int) -> None:
        ours, self.client = socket.socketpair()
        self.client.settimeout(60)
        self.reader = RecordReader()
        self.ways: list[bool] = []
        self.closed = 0
        self.time_s = 0.0
        self.outlet = RingOutlet(
            RingMemory(size),
            RingChannel(ours),
            max_chunk_bytes=1 << 16,
            check_payload=False,
            observer=self,
            on_close=self._count,
            now=lambda: self.time_s,
        )

    def placed(self, *, is_in_ring: bool) -> None:
        """Note which way a batch went."""
        self.ways.append(is_in_ring)

    def blocked(self, *, seconds: float) -> None:
        """Have no use for it."""

    def send(self, payload_bytes: int = _PAYLOAD, *, after_s: float = 1.0) -> int:
        """Make a batch as a stream does; return how many messages it needed."""
        self.outlet.wait()
        places = self.outlet.places()
        header = pb.BatchHeader(buffer_bytes=[payload_bytes], payload_bytes=payload_bytes)
        places.add(header, (payload_bytes,))
        (target,) = places.find()
        out = payload_out(target)
        out.put(0, np.ones(payload_bytes, np.uint8))
        out.end()
        messages = [message for message, _ in places.finish() if message]
        # Long after the batch before, unless a test says when.
        self.time_s += after_s
        self.outlet.announce()
        return len(messages)

    def close(self) -> None:
        """End both sides."""
        self.outlet.close()
        self.client.close()

    def _count(self) -> None:
        self.closed += 1


def _in_thread(ring: _Ring) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(ring.send())
        except ClientGoneError as error:
            results.append(type(error))

    thread = threading.Thread(target=run, name="send")
    thread.start()
    return thread, results


def _fill(ring: _Ring) -> int:
    """Fill a ring with batches; return how many there are."""
    count = 0
    while ring.outlet._memory.fits(_PAYLOAD + 512):
        assert 0 == ring.send()
        count += 1
    said = ring.reader.feed(ring.client.recv(1 << 16))
    assert [RecordKind.SLOT] * count == [each.kind for each in said]
    return count


def test_a_full_ring_asks_and_a_hungry_client_gets_messages() -> None:
    """FULL, HUNGRY with its number, and the batch is in the messages of the call."""
    with closing(_Ring(4096)) as ring:
        _fill(ring)
        thread, results = _in_thread(ring)
        (full,) = ring.reader.feed(ring.client.recv(24))
        assert RecordKind.FULL == full.kind
        # An answer to something else changes nothing: the release after it ends the wait.
        ring.client.sendall(record(RecordKind.HUNGRY, 0, full.generation + 1))
        ring.client.sendall(record(RecordKind.HUNGRY, 0, full.generation))
        thread.join(60)

        assert [1] == results
        assert not ring.ways[-1]


def test_of_batches_made_together_those_without_a_slot_get_messages() -> None:
    """Each goes where there is room for it, and is announced in its turn."""
    with closing(_Ring(4096)) as ring:
        ring.outlet.wait()
        header = pb.BatchHeader(buffer_bytes=[_PAYLOAD], payload_bytes=_PAYLOAD)
        places = ring.outlet.places()
        count = 1 + 4096 // _PAYLOAD
        for _ in range(count):
            places.add(header, (_PAYLOAD,))
        found = places.find()
        finished = places.finish()
        for _ in finished:
            ring.outlet.announce()
        ring.outlet.flush()
        slots = sum(isinstance(each, tuple) and not each[0] for each in found)

        assert 0 < slots < count
        assert [True] * slots + [False] * (count - slots) == ring.ways
        assert [not message for message, _ in finished] == ring.ways
        assert [1] * count == [batch_count for _, batch_count in finished]
        said = ring.reader.feed(ring.client.recv(1 << 16))
        assert [RecordKind.SLOT] * slots == [each.kind for each in said]


def test_a_ring_says_how_many_batches_find_room_together() -> None:
    """Before the first, whose size is not known, one; then as many as are free, or one."""
    with closing(_Ring(8192)) as ring:
        first = ring.outlet.room(8)
        ring.send()
        rest = ring.outlet.room(100)
        few = ring.outlet.room(2)
        while ring.outlet._memory.fits(_PAYLOAD + 512):
            ring.send()

        assert (1, 2, 1) == (first, few, ring.outlet.room(8))
        assert 2 < rest <= 8192 // _PAYLOAD


def test_announcements_of_fast_streams_travel_together() -> None:
    """One that comes soon after another is held back; the next late one, or a wait, brings both."""
    with closing(_Ring(_MIB)) as ring:
        ring.send()
        assert 24 == len(ring.client.recv(1 << 16))
        ring.send(after_s=0.0)
        ring.client.setblocking(False)
        with pytest.raises(BlockingIOError):
            ring.client.recv(1 << 16)
        ring.send(after_s=0.01)
        assert 2 * 24 == len(ring.client.recv(1 << 16))
        ring.send(after_s=0.0)
        ring.outlet.flush()
        assert 24 == len(ring.client.recv(1 << 16))
        ring.send(after_s=0.0)
        assert ring.outlet.announce_message()
        assert 2 * 24 == len(ring.client.recv(1 << 16))


def test_a_release_makes_room() -> None:
    """The stream that waits goes on in the slot that came free."""
    with closing(_Ring(4096)) as ring:
        _fill(ring)
        thread, results = _in_thread(ring)
        assert RecordKind.FULL == ring.reader.feed(ring.client.recv(24))[0].kind
        ring.client.sendall(record(RecordKind.RELEASE, 0, 1))
        thread.join(60)
        (slot,) = ring.reader.feed(ring.client.recv(24))

        assert [0] == results
        assert (RecordKind.SLOT, 0) == (slot.kind, slot.start)


def test_a_batch_larger_than_the_ring_does_not_wait() -> None:
    """It goes out in messages at once, also while the ring is empty."""
    with closing(_Ring(4096)) as ring:
        assert 1 == ring.send(8192)
        assert 1 == ring.send(8192)


def test_a_wake_ends_a_wait_for_room() -> None:
    """A stream that is drained or cancelled does not stand until its client wakes up."""
    with closing(_Ring(4096)) as ring:
        _fill(ring)
        thread, results = _in_thread(ring)
        assert RecordKind.FULL == ring.reader.feed(ring.client.recv(24))[0].kind
        ring.outlet.wake()
        thread.join(60)

        assert [1] == results


def test_a_client_that_goes_ends_a_wait_for_room() -> None:
    """As the close of its socket shows, however it went."""
    with closing(_Ring(4096)) as ring:
        _fill(ring)
        thread, results = _in_thread(ring)
        assert RecordKind.FULL == ring.reader.feed(ring.client.recv(24))[0].kind
        ring.client.close()
        thread.join(60)

        assert [ClientGoneError] == results


def test_a_client_that_reads_nothing_is_waited_for_and_can_be_cut() -> None:
    """Announcements fill its socket, no more; a wake ends that wait too."""
    with closing(_Ring(_MIB)) as ring:
        channel = ring.outlet._channel
        sent = threading.Event()

        def send() -> None:
            while channel.send(record(RecordKind.WIRE)):
                pass
            sent.set()

        thread = threading.Thread(target=send, name="send")
        thread.start()
        assert not sent.wait(0.3)
        ring.outlet.wake()
        thread.join(60)

        assert sent.is_set()


def test_a_client_that_sends_without_end_and_reads_nothing_is_cut() -> None:
    """What it sends is not kept in memory for ever."""
    ours, theirs = socket.socketpair()
    hungry = record(RecordKind.HUNGRY) * 1024

    def flood() -> None:
        with suppress(OSError):
            while True:
                theirs.sendall(hungry)

    def announce() -> None:
        while channel.send(record(RecordKind.WIRE)):
            pass

    thread = threading.Thread(target=flood, name="flood")
    with closing(RingChannel(ours)) as channel:
        thread.start()
        with pytest.raises(BadArgumentError, match="more than 262144 records"):
            announce()
    thread.join(60)
    theirs.close()

    assert not thread.is_alive()


@pytest.mark.parametrize("said", [bytes(64), b"\xff" * 64, b"GET / HTTP/1.1\r\n" * 8])
def test_garbage_on_the_socket_is_the_clients_fault(said: bytes) -> None:
    """It ends as INVALID_ARGUMENT, which nobody takes for damaged data."""
    ours, theirs = socket.socketpair()
    with theirs, closing(RingChannel(ours)) as channel:
        theirs.send(said)
        with pytest.raises(BadArgumentError, match="an invalid record"):
            channel.take()


def test_a_ring_is_given_up_once() -> None:
    """Closing twice, and waking after it, changes nothing."""
    ring = _Ring(4096)
    ring.close()
    ring.close()
    ring.outlet.wake()

    assert 1 == ring.closed
