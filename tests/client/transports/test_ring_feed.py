"""Tests of batches that come in shared memory, with real servers on real sockets."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.client import Batch, Deadlines, NumpyDataset, RemoteDataset, Ring, Transport
from headrace.client.feeds.transport import TransportState
from headrace.client.feeds.wait_times import HopClock
from headrace.client.transports.ring.batch import SlotEvent
from headrace.client.transports.ring.feed import RingFeed
from headrace.client.transports.ring.layout import SlotForm, SlotLayout
from headrace.client.transports.ring.memory import RingMemory, Slot
from headrace.client.wire.assembler import StreamAssembler
from headrace.errors import BadArgumentError, NoTransportError, ServerUnreachableError
from headrace.ring import OpenSlot, RecordKind, record
from headrace.server import Server
from headrace.server.transports.ring import RingSettings
from support.command import serving
from support.datasets import write_rows
from support.interrupt_points import InterruptAt
from support.running import server_of
from support.transports import listen_for
from support.waiting import until

SAMPLES, WIDTH, BATCH = 4096, 1024, 16
NAME = "d"
COUNT = SAMPLES // BATCH
QUICK = Deadlines(connect_s=60, silence_s=10, give_up_s=60)
_RING = "headrace-ring"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """16 MiB in batches of 64 KiB: many times the rings of these tests."""
    url = str(tmp_path_factory.mktemp("ring") / NAME)
    write_rows(url, sample_count=SAMPLES, width=WIDTH)
    return url


@pytest.fixture(scope="module")
def undisturbed(url: str) -> list[str]:
    """The digest of each batch of one epoch, over gRPC."""
    with _server(url, "127.0.0.1:0") as server, closing(_dataset(server.address)) as dataset:
        return [_digest(batch) for batch in dataset]


@pytest.fixture
def socket_address() -> Iterator[str]:
    """An address beside which there is room for a ring's."""
    with listen_for("ring") as address:
        yield address


def _server(url: str, listen: str, **settings: object) -> Server:
    ring = {name: settings.pop(name) for name in list(settings) if name.startswith("ring_")}
    plugs = (RingSettings(**ring),)  # type: ignore[arg-type] # tests name the settings they mean
    return server_of({NAME: url}, listen=listen, plugs=plugs, **settings)


def _transport(kind: str = "auto", *, check_payload: bool = False) -> Transport:
    """Hold nothing ready, and ask for a small ring."""
    ring = Ring(1 << 20, check_payload=check_payload)
    return Transport(kind, [ring], prefetch_bytes=0, deadlines=QUICK)


def _dataset(*targets: str, **options: object) -> RemoteDataset:
    defaults: dict[str, object] = {
        "batch_size": BATCH,
        "epochs": 1,
        "transport": _transport(),
    }
    return RemoteDataset(list(targets), NAME, **{**defaults, **options})  # type: ignore[arg-type] # tests name the options they mean


def _digest(batch: Batch) -> str:
    return hashlib.sha256(_x(batch).numpy().tobytes() + batch.token).hexdigest()


def _x(batch: Batch) -> torch.Tensor:
    x = batch["x"]
    assert isinstance(x, torch.Tensor)
    return x


def _mapped() -> int:
    """Return how many rings this process, both sides of most tests, has mapped or open."""
    maps = Path("/proc/self/maps").read_text()
    count = maps.count(_RING)
    for fd in Path("/proc/self/fd").iterdir():
        # Other threads close some meanwhile.
        with suppress(FileNotFoundError):
            count += _RING in str(fd.readlink())
    return count


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_ring_is_chosen_where_it_can_be(
    url: str, undisturbed: list[str], socket_address: str, device: str | None
) -> None:
    """On the server's unix socket batches come in shared memory, and are those of the wire.

    Also on their way to a device, which frees their slots when the copies have ended.
    """
    with _server(url, socket_address), closing(_dataset(socket_address, device=device)) as dataset:
        seen = [_digest(batch) for batch in dataset]
        stats = dataset.stats()

    assert undisturbed == seen
    assert ("ring", "") == (stats.transport, stats.transport_reason)
    assert stats.transport_batch_count > COUNT // 2


@pytest.mark.parametrize(
    ("settings", "options", "reason"),
    [
        ({}, {"transport": _transport("grpc")}, "Transport('grpc') was requested"),
        ({"ring_bytes": 0}, {}, "--ring-bytes is 0"),
        ({"ring_bytes": 4096}, {}, "smaller than 1048576"),
    ],
)
def test_where_no_ring_can_be_the_reason_is_said(
    url: str,
    undisturbed: list[str],
    *,
    socket_address: str,
    settings: dict[str, object],
    options: dict[str, object],
    reason: str,
) -> None:
    """Batches then come over gRPC, the same ones."""
    with (
        _server(url, socket_address, **settings),
        closing(_dataset(socket_address, **options)) as dataset,
    ):
        seen = [_digest(batch) for batch in dataset]
        stats = dataset.stats()

    assert undisturbed == seen
    assert ("grpc", 0) == (stats.transport, stats.transport_batch_count)
    assert reason in stats.transport_reason


def test_a_ring_that_is_wanted_and_cannot_be_is_an_error(url: str) -> None:
    """``Transport("ring")`` over TCP raises, and says what is missing."""
    with (
        _server(url, "127.0.0.1:0") as server,
        closing(_dataset(server.address, transport=_transport("ring"))) as dataset,
        pytest.raises(NoTransportError, match="is not a unix socket"),
    ):
        next(iter(dataset))


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "shm"},
        {"options": Ring},
        {"options": [Ring(), Ring()]},
        {"prefetch_bytes": -1},
        {"max_batch_bytes": 0},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    """Before anything travels, by their own names."""
    with pytest.raises(BadArgumentError, match=f"transport.{next(iter(options))}"):
        Transport(**options)  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize("options", [{"ring_bytes": -1}, {"check_payload": 1}])
def test_options_of_rings_out_of_range_are_refused(options: dict[str, object]) -> None:
    """By their own names, too."""
    with pytest.raises(BadArgumentError, match=f"ring.{next(iter(options))}"):
        Ring(**options)  # type: ignore[arg-type] # on purpose


def test_batches_that_are_kept_never_change(
    url: str, undisturbed: list[str], socket_address: str
) -> None:
    """A loop that keeps all batches fills the ring; the others come over gRPC, and none waits."""
    with _server(url, socket_address), closing(_dataset(socket_address)) as dataset:
        kept = list(dataset)
        stats = dataset.stats()

        assert undisturbed == [_digest(batch) for batch in kept]

    assert 0 < stats.transport_batch_count < (1 << 20) // (BATCH * WIDTH * 4)
    # Also after the dataset has gone, and its server.
    assert undisturbed == [_digest(batch) for batch in kept]


@pytest.mark.parametrize("transport", ["ring", "grpc"])
def test_tensors_that_are_kept_alone_never_change(
    url: str, undisturbed: list[str], socket_address: str, transport: str
) -> None:
    """A loop that keeps a slice of a tensor, and not its batch, keeps the memory all the same."""
    with (
        _server(url, socket_address),
        closing(_dataset(socket_address, transport=_transport(transport))) as dataset,
    ):
        kept = [(_x(batch)[0:], batch.token) for batch in dataset]

    assert undisturbed == [
        hashlib.sha256(x.numpy().tobytes() + token).hexdigest() for x, token in kept
    ]


def test_batches_are_the_loops_to_write(
    url: str, undisturbed: list[str], socket_address: str
) -> None:
    """Tensors are views of the ring, writable, and what is written shows in no later batch."""
    seen = []
    with _server(url, socket_address), closing(_dataset(socket_address)) as dataset:
        for batch in dataset:
            seen.append(_digest(batch))
            _x(batch).fill_(-1.0)

    assert undisturbed == seen


def test_payloads_are_hashed_if_that_is_wanted(
    url: str, undisturbed: list[str], socket_address: str
) -> None:
    """With ``check_payload`` slots carry the wire's checksum, and it is that of their bytes."""
    with (
        _server(url, socket_address),
        closing(_dataset(socket_address, transport=_transport(check_payload=True))) as dataset,
    ):
        seen = [_digest(batch) for batch in dataset]
        count = dataset.stats().transport_batch_count

    assert undisturbed == seen
    assert count > 0


def test_nothing_is_left_of_a_ring(url: str, socket_address: str) -> None:
    """When the dataset is closed and its batches are gone, neither side has memory or files."""
    with _server(url, socket_address) as server:
        dataset = _dataset(socket_address)
        batch = next(iter(dataset))
        assert _mapped() > 0
        dataset.close()
        assert until(lambda: not server.open_call_count)
        assert _mapped() > 0  # the batch lives
        del batch

        assert until(lambda: not _mapped())
    assert [] == list(Path(socket_address.removeprefix("unix:")).parent.iterdir())


def test_a_stream_moves_between_ring_and_wire(
    url: str, undisturbed: list[str], socket_address: str
) -> None:
    """The sidecar dies, a replica on the network goes on, and the sidecar again; no batch shows."""
    seen, ways = [], []
    with ExitStack() as stack:
        remote = stack.enter_context(serving({NAME: url}))
        sidecar = stack.enter_context(serving({NAME: url}, listen=socket_address))
        dataset = stack.enter_context(closing(_dataset(socket_address, remote.address)))
        for step, batch in enumerate(dataset):
            seen.append(_digest(batch))
            way = dataset.stats().transport
            if step == COUNT // 4:
                ways.append(way)
                sidecar.process.kill()
                sidecar.process.wait(60)
            elif way == "grpc" and len(ways) == 1:
                ways.append(way)
                # At once: a stream lies whole in buffers after a while.
                remote.process.kill()
                stack.enter_context(serving({NAME: url}, listen=socket_address))
        ways.append(dataset.stats().transport)

    assert undisturbed == seen
    assert ["ring", "grpc", "ring"] == ways


def test_a_drained_server_ends_a_ring_as_it_ends_a_call(
    url: str, undisturbed: list[str], socket_address: str
) -> None:
    """Between two batches, with a reason that is followed."""
    with (
        _server(url, socket_address) as first,
        _server(url, "127.0.0.1:0") as second,
        closing(_dataset(socket_address, second.address)) as dataset,
    ):
        batches = iter(dataset)
        seen = [_digest(next(batches)) for _ in range(20)]
        drain = threading.Thread(target=first.drain, name="drain")
        drain.start()
        seen += [_digest(batch) for batch in batches]
        drain.join(60)
        transport = dataset.stats().transport

    assert not drain.is_alive()
    assert undisturbed == seen
    assert "grpc" == transport


def test_streams_that_have_had_their_time_go_on_in_new_rings(
    url: str, undisturbed: list[str], socket_address: str
) -> None:
    """REBALANCE after each batch or so costs no batch, and leaves no ring."""
    with _server(url, socket_address, max_stream_s=0.01):
        with closing(_dataset(socket_address)) as dataset:
            seen = [_digest(batch) for batch in dataset]
            stats = dataset.stats()
        assert until(lambda: not _mapped())

    assert undisturbed == seen
    assert stats.reconnect_count > 0
    assert "ring" == stats.transport


_CLIENT = """
import sys
from headrace.client import RemoteDataset, Transport
dataset = RemoteDataset(sys.argv[1], "d", batch_size=16, transport=Transport("ring"))
batch = next(iter(dataset))
print("reads", flush=True)
sys.stdin.read()
"""


def test_a_killed_client_leaves_nothing(url: str, socket_address: str) -> None:
    """SIGKILL: the server sees the socket close, ends the stream and gives the memory back."""
    with _server(url, socket_address) as server:
        client = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, socket_address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert client.stdout is not None
            assert b"reads\n" == client.stdout.readline()
            assert _mapped() > 0
        finally:
            client.send_signal(signal.SIGKILL)
            client.communicate()

        assert until(lambda: not server.open_call_count and not _mapped())


@pytest.mark.parametrize("transport", ["ring", "grpc"])
def test_arrays_for_numpy_come_the_same_ways(
    url: str, undisturbed: list[str], socket_address: str, transport: str
) -> None:
    """Views of the slots, kept for as long as the loop keeps them; the samples of the wire."""
    with _server(url, socket_address):
        dataset = NumpyDataset(
            socket_address,
            NAME,
            batch_size=BATCH,
            epochs=1,
            transport=_transport(transport),
        )
        kept, tokens = [], []
        for arrays in dataset:
            kept.append(arrays["x"])
            assert dataset.token is not None
            tokens.append(dataset.token)

    found = [hashlib.sha256(x.tobytes() + t).hexdigest() for x, t in zip(kept, tokens, strict=True)]
    assert undisturbed == found
    assert transport == dataset.transport
    assert bool(dataset.transport_reason) == (transport == "grpc")


class _NoCall:
    """A call that says nothing."""

    target = "unix:nowhere"

    def next_message(self) -> None:
        """Have no message."""


def _feed(connection: socket.socket, silence_s: float) -> tuple[RingFeed, RingMemory]:
    fd = os.memfd_create("headrace-ring")
    os.ftruncate(fd, 1 << 20)
    memory = RingMemory(fd, 1 << 20, connection)
    os.close(fd)
    feed = RingFeed(
        _NoCall(),  # type: ignore[arg-type] # all of a call that is used here
        memory,
        connection,
        assembler=StreamAssembler(lambda size: np.empty(size, np.uint8)),
        clock=HopClock(),
        transport=TransportState(),
        silence_s=silence_s,
    )
    return feed, memory


def test_a_silent_ring_is_an_error() -> None:
    """A server that hangs says nothing on the ring's socket; the wait for it has an end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        feed, _ = _feed(ours, 0.05)
        with pytest.raises(ServerUnreachableError, match="sent nothing about the ring"):
            next(feed.events())


def test_a_server_that_reads_nothing_is_given_up_too() -> None:
    """It hangs when the ring is full and reads no releases; the answer to that does not wait."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        feed, _ = _feed(ours, 0.05)
        with suppress(BlockingIOError):
            while True:
                ours.send(bytes(4096), socket.MSG_DONTWAIT)
        theirs.sendall(record(RecordKind.FULL, 0, 1))
        with pytest.raises(ServerUnreachableError, match="sent nothing about the ring"):
            next(feed.events())


def _opened(start: int, generation: int, end: int) -> OpenSlot:
    return OpenSlot(start, generation, b"", start + 64, end, 0)


def _lent(memory: RingMemory, opened: OpenSlot) -> NDArray[np.uint8]:
    """The payload of a slot, whose end releases it."""
    memory.note_lent(opened.generation, opened.payload_end - opened.start)
    return Slot(memory.mapping, opened).payload()


def test_releases_wait_for_nobody() -> None:
    """A server that reads none of them holds up no loop, whatever the socket waited for before."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    with ours, theirs:
        _, memory = _feed(ours, 60)
        with suppress(BlockingIOError):
            while True:
                ours.send(bytes(4096), socket.MSG_DONTWAIT)
        began = time.monotonic()
        for generation in range(1, 9):
            _lent(memory, _opened(0, generation, 1 << 19))
        memory.flush()

        assert time.monotonic() - began < 30


def test_no_interrupt_is_lost_when_a_slot_ends() -> None:
    """Ctrl-C would be, in a finaliser of Python's own: the loop would never see it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _, memory = _feed(ours, 60)
        form = types.SimpleNamespace(sample_count=1)
        layout = SlotLayout(cast("SlotForm", form), 64, [64], [0])
        slots = [
            Slot(memory.mapping, _opened(0, 1, 128)),
            SlotEvent(memory.mapping, _opened(0, 2, 128), layout),
        ]
        with InterruptAt(0) as points:
            slots.clear()

        assert [1, 2] == sorted(gone.generation for gone in memory.mapping.gone)
        assert 0 == points.count


def test_the_rings_array_lives_as_long_as_a_view() -> None:
    """Whoever pinned it for transfers lets go when it ends: not while one may be under way."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _, memory = _feed(ours, 60)
        whole = weakref.ref(memory.array)
        payload = _lent(memory, _opened(0, 1, 128))
        column = np.ndarray((16,), np.float32, payload.data)[1:]
        memory.detach()
        del payload
        assert whole() is not None
        del column

        assert whole() is None


_FORKED = """
import mmap, os, socket
import numpy as np
from headrace.client.transports.ring.memory import RingMemory, Slot
from headrace.ring import OpenSlot, RecordKind, record
def lent(opened):
    ring.note_lent(opened.generation, opened.payload_end - opened.start)
    return Slot(ring.mapping, opened).payload()
ours, theirs = socket.socketpair()
fd = os.memfd_create("headrace-ring")
os.ftruncate(fd, 1 << 20)
ring = RingMemory(fd, 1 << 20, ours)
before = lent(OpenSlot(0, 1, b"", 64, 128, 0))
if os.fork() == 0:
    del before
    ring.flush()
    os._exit(0)
os.wait()
del before
after = lent(OpenSlot(128, 2, b"", 192, 256, 0))
del after
ring.flush()
theirs.setblocking(False)
print(theirs.recv(4096).hex())
"""


def test_what_a_forked_process_sees_is_not_released() -> None:
    """A child shares the memory: slots that were out at the fork stay, and a child frees none."""
    done = subprocess.run(
        [sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=240, check=True
    )

    # One record alone: RELEASE of the slot at 128, generation 2.
    assert "11000000000000008000000000000000" + "0200000000000000" == done.stdout.strip()
