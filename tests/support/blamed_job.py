"""A paced job whose every hop can be made slow, to see whether the culprit is named.

Four ranks, threads of this process, read with a cold cache from one server over proxies of their
own. Two of them have a device to copy to, the others a function that transforms batches.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.bench import children
from headrace.client import Order, RemoteDataset, Transport
from headrace.client.device.device_ring import MovingReader
from headrace.client.feeds.blame import blamed
from headrace.client.wire.assembler import StreamAssembler
from headrace.loadtest.faults.proxy import Cut, FaultyProxy
from support.datasets import write_dataset
from support.proxy import Proxy
from support.slow_store import SlowStore, reached, slow_store

RANKS = 4
_STEP_S = 0.2
_ROWS, _ROW_BYTES, _BATCH = 60_000, 4096, 96
_SEEN_S = 7.5
_SOCKET_BYTES = 64 << 10
_MOST_RECOVERY_S = 25.0
_STORE = {"median_ms": 20.0, "p99_ms": 100.0, "mb_per_s": 80.0, "refused": 0.0, "down": 0.0}


class Vanishing(Proxy):
    """A proxy whose host can vanish, so that no connection can be made either."""

    def vanish(self) -> None:
        """Let nothing through, and answer no connection, until `appear`."""
        self.cut()
        self.answer_none()

    def answer_none(self) -> None:
        """Answer no connection, until `appear`."""
        # Linux drops what a queue of connections has no room for.
        self._is_gone.set()
        self._listener.listen(0)
        for _ in range(4):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(self._listener.getsockname())
            self._fillers.append(each)

    def appear(self) -> None:
        """Be there again."""
        for each in self._fillers:
            each.close()
        self._fillers.clear()
        self._listener.listen(128)
        self._is_gone.clear()
        self.mend()

    def __init__(self, upstream: str) -> None:
        self._is_gone = threading.Event()
        self._fillers: list[socket.socket] = []
        super().__init__(upstream)

    def _pass_on(self, client: socket.socket, server: socket.socket, limit: int | None) -> None:
        # So that little is on its way.
        for each in (client, server):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                each.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
        super()._pass_on(client, server, limit)

    def _accept(self) -> None:
        while not self._ended.is_set():
            if self._is_gone.is_set():
                time.sleep(0.05)
                continue
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client, None))
                self._threads.append(thread)
                thread.start()


class _Copies:
    """Copies to no device at all, as slowly as is asked for."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer."""
        return np.empty(size, np.uint8)

    def adopt(self, memory: object) -> None:
        """Do nothing."""

    def moving(self, reader: Any) -> MovingReader:
        """Return a reader that moves."""
        return MovingReader(reader, self)  # type: ignore[arg-type] # it has what is used

    def move(self, event: Any) -> Any:
        """Take as long as is asked for."""
        time.sleep(self._rank.copy_s)
        return event

    def close(self) -> None:
        """Do nothing."""


@dataclass
class Rank:
    """One rank, and how slow it is."""

    number: int
    dataset: Any = None
    step_s: float = _STEP_S
    copy_s: float = 0.0
    transform_s: float = 0.0
    steps: int = 0
    far: FaultyProxy | None = None
    near: Vanishing | None = None
    failure: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def open(self, address: str, stack: ExitStack) -> None:
        """Connect over proxies of its own."""
        self.far = stack.enter_context(FaultyProxy(address))
        self.near = Vanishing(self.far.address)
        stack.callback(self.near.close)
        options: dict[str, Any] = {}
        if self.number >= RANKS // 2:
            options["transform"] = self._transformed
        self.dataset = RemoteDataset(
            self.near.address,
            "d",
            batch_size=_BATCH,
            rank=self.number,
            world_size=RANKS,
            order=Order(shuffle_bytes=8 << 20),
            transport=Transport("grpc", prefetch_bytes=1 << 18),
            **options,
        )
        if self.number < RANKS // 2:
            self.dataset._live._make_mover = lambda: _Copies(self)
        thread = threading.Thread(target=self._run, name=f"rank-{self.number}")
        thread.start()

        def end() -> None:
            self.ended.set()
            thread.join(60)

        stack.callback(end)

    def _transformed(self, batch: Any) -> Any:
        time.sleep(self.transform_s)
        return batch

    def _run(self) -> None:
        try:
            with closing(self.dataset):
                while True:
                    for _ in self.dataset:
                        self.steps += 1
                        if self.ended.wait(self.step_s):
                            return
        except BaseException as failure:  # noqa: BLE001 - told by the test
            self.failure = failure

    def waited(self) -> dict[str, float]:
        """Return what it waited for so far."""
        found: dict[str, float] = self.dataset.stats().waited_on._asdict()
        return found


class World:
    """The job, its server and its store."""

    def __init__(self, store: SlowStore, faults: Path, stack: ExitStack) -> None:
        self.store, self._faults, self._stack = store, faults, stack
        self._server = ExitStack()
        stack.callback(self._server.close)
        self.start()
        self.ranks = [Rank(number) for number in range(RANKS)]
        self.assemble_s = 0.0
        for rank in self.ranks:
            rank.open(self.address, stack)

    def start(self) -> None:
        """Start the server at the address that it had before."""
        options = ("--cache-bytes=32MiB", "--prefetch-bytes=1MiB", "--log-level=error")
        listen = getattr(self, "address", "127.0.0.1:0")
        self.serving = self._server.enter_context(
            children.serving({"d": "s3://bucket/d"}, f"--listen={listen}", *options)
        )
        self.address = self.serving.address

    def signal(self, number: int) -> None:
        """Send the server a signal."""
        os.kill(self.serving.process.pid, number)

    def inside(self, **faults: float) -> None:
        """Make the server slow."""
        self._faults.write_text(json.dumps(faults))

    def throttle(self, seconds: float) -> None:
        """Give the server a processor for 2 % of the time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.signal(signal.SIGSTOP)
            time.sleep(0.098)
            self.signal(signal.SIGCONT)
            time.sleep(0.002)

    def again(self, number: int) -> None:
        """End the server with a signal, and start another one a moment later."""
        self.signal(number)
        self.serving.process.wait(30)
        time.sleep(1.0)
        self.start()

    def heal(self) -> None:
        """End all faults."""
        self.inside()
        for name, value in _STORE.items():
            self.store.set(name, value)
        self.assemble_s = 0.0
        for rank in self.ranks:
            rank.step_s, rank.copy_s, rank.transform_s = _STEP_S, 0.0, 0.0
            assert rank.far is not None
            rank.far.apply(None)

    def is_well(self) -> bool:
        """Return whether nobody waited in the last second."""
        before = [sum(rank.waited().values()) for rank in self.ranks]
        time.sleep(1.0)
        after = [sum(rank.waited().values()) for rank in self.ranks]
        return all(b - a < 0.05 for a, b in zip(before, after, strict=True))


@dataclass(frozen=True)
class Fault:
    """What is done, who is to blame for it, and the rank; None if it hits all."""

    name: str
    hop: str
    inject: Callable[[World, Rank], None]
    is_of_rank: bool = False


def _store(**settings: float) -> Callable[[World, Rank], None]:
    def inject(world: World, _: Rank) -> None:
        for name, value in settings.items():
            world.store.set(name, value)
        time.sleep(5.0)

    return inject


def _inside(**faults: float) -> Callable[[World, Rank], None]:
    def inject(world: World, _: Rank) -> None:
        world.inside(**faults)
        time.sleep(5.0)

    return inject


def _stopped(world: World, _: Rank) -> None:
    world.signal(signal.SIGSTOP)
    time.sleep(4.0)
    world.signal(signal.SIGCONT)


def _hung(world: World, _: Rank) -> None:
    world.signal(signal.SIGSTOP)
    threading.Timer(_SEEN_S + 0.5, world.signal, [signal.SIGCONT]).start()
    time.sleep(_SEEN_S - 0.5)


def _far(kind: str, value: float) -> Callable[[World, Rank], None]:
    def inject(_: World, rank: Rank) -> None:
        assert rank.far is not None
        rank.far.apply(Cut(kind, value))  # type: ignore[arg-type] # one of them
        time.sleep(5.0)

    return inject


def _late(_: World, rank: Rank) -> None:
    assert rank.far is not None
    assert rank.near is not None
    # Connections take as long.
    rank.near.answer_none()
    rank.far.apply(Cut("latency", 3.0))
    time.sleep(5.0)
    threading.Timer(2.9, rank.near.appear).start()


def _vanished(_: World, rank: Rank) -> None:
    assert rank.near is not None
    rank.near.vanish()
    # Until it is judged: nothing says then what was away.
    threading.Timer(_SEEN_S + 0.5, rank.near.appear).start()
    time.sleep(_SEEN_S - 0.5)


def _own(**values: float) -> Callable[[World, Rank], None]:
    def inject(_: World, rank: Rank) -> None:
        for name, value in values.items():
            setattr(rank, name, value)
        time.sleep(5.0)

    return inject


def _assembled(world: World, _: Rank) -> None:
    world.assemble_s = 0.3
    time.sleep(5.0)


FAULTS = (
    Fault("slow store", "store", _store(median_ms=2500.0, p99_ms=3000.0)),
    Fault("store answers 503", "store", _store(refused=0.95)),
    Fault("narrow store", "store", _store(mb_per_s=0.1)),
    Fault("store down", "store", _store(down=1.0)),
    Fault("slow decode", "decode", _inside(decode_ms=1500.0)),
    Fault("slow making", "server", _inside(make_ms=400.0)),
    Fault("server stopped", "server", _stopped),
    Fault("server hangs", "server", _hung),
    Fault("server throttled", "server", lambda world, _: world.throttle(5.0)),
    Fault("server killed", "server", lambda world, _: world.again(signal.SIGKILL)),
    Fault("server drained", "server", lambda world, _: world.again(signal.SIGTERM)),
    Fault("latency", "network", _late, is_of_rank=True),
    Fault("bandwidth", "network", _far("bandwidth", 2e5), is_of_rank=True),
    Fault("black hole", "network", _vanished, is_of_rank=True),
    Fault("slow transform", "client", _own(transform_s=0.5), is_of_rank=True),
    Fault("slow assembly", "client", _assembled),
    Fault("slow copy", "copy", _own(copy_s=0.5), is_of_rank=True),
    Fault("slow trainer", "trainer", _own(step_s=0.9), is_of_rank=True),
)


@dataclass(frozen=True)
class Found:
    """What was said of a fault, by the rank that waited the most."""

    fault: Fault
    hop: str
    rank: int
    share: float
    is_right: bool
    waited: dict[str, float]


def judged(world: World, fault: Fault, rank: Rank) -> Found:
    """Inject a fault, and say who is to blame before six seconds are over."""
    before = [each.waited() for each in world.ranks]
    began = time.monotonic()
    fault.inject(world, rank)
    world.heal()
    time.sleep(max(0.0, began + _SEEN_S - time.monotonic()))
    seconds = time.monotonic() - began
    grown = [
        {hop: value - old[hop] for hop, value in each.waited().items()}
        for each, old in zip(world.ranks, before, strict=True)
    ]
    worst = max(range(RANKS), key=lambda number: sum(grown[number].values()))
    hop, share = blamed(grown[worst], seconds)
    is_rank = not fault.is_of_rank or hop == "trainer" or worst == rank.number
    waited = {name: round(value, 2) for name, value in grown[worst].items() if value >= 0.01}
    return Found(fault, hop, worst, share, hop == fault.hop and is_rank, waited)


def rank_for(world: World, fault: Fault, chance: random.Random) -> Rank:
    """Return a rank that the fault can hit."""
    own = {"copy": range(RANKS // 2), "client": range(RANKS // 2, RANKS)}
    return world.ranks[chance.choice(own.get(fault.hop, range(RANKS)))]


def recover(world: World) -> None:
    """Wait until nobody waits any more, or for as long as a busy machine is worth."""
    end = time.monotonic() + _MOST_RECOVERY_S
    while not world.is_well() and time.monotonic() < end:
        pass
    for rank in world.ranks:
        assert rank.failure is None, rank.failure


@contextmanager
def running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Run the job."""
    data = np.random.default_rng(0).integers(0, 256, (_ROWS, _ROW_BYTES), np.uint8)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(data.ravel()), _ROW_BYTES)
    write_dataset(str(folder / "d"), pa.table({"x": rows}), shard_samples=[_ROWS // 8] * 8)
    faults = folder / "faults.json"
    tests = str(Path(__file__).parents[1])
    monkeypatch.setenv("FAULTS", str(faults))
    monkeypatch.setenv("PYTHONPATH", tests)
    hooked = f"import support.faulty_server; {children._HEADRACE}"
    monkeypatch.setattr(children, "_HEADRACE", hooked)
    take = StreamAssembler.take
    with slow_store(folder, tls=False, **_STORE) as store, reached(store), ExitStack() as stack:
        world = World(store, faults, stack)

        def take_slowly(self: StreamAssembler, frame: Any) -> Any:
            time.sleep(world.assemble_s)
            return take(self, frame)

        monkeypatch.setattr(StreamAssembler, "take", take_slowly)
        recover(world)
        yield world
