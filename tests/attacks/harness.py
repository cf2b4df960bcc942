"""Attack a real server, and see what an honest second caller sees meanwhile.

An attack is a program of its own, ``aNN_name.py`` in this folder, which holds an `Attack` and ends
with a call of `main`. Four processes take part: the server, the attacker, an honest caller, and
this one, which judges. The honest caller works for a while beside the attack, and for as long
beside a process that takes the same processor time as the attacker and calls nobody. It must see
no error, and have at least half the rate beside the attack.

Some attacks take a proxy before the server (`Attack.needs_proxy`). They are judged like that behind
Envoy as `deploy/envoy` configures it. Without it, the server must only live through them: keep its
memory under a bound, and answer soon after.

    python -m attacks.a01_half_open --seconds 60            (with tests/ on PYTHONPATH)

``make test`` runs all of them for a moment each, and judges no rate; ``make attack`` for longer.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from attacks.honest import Seen, work
from headrace.bench.children import Serving, serving
from support.datasets import small_table, write_dataset
from support.envoy import envoy, free_port

HONEST_TOKEN = "honest-caller-0123456789"  # noqa: S105 - of a server that lives for seconds
ATTACKER_TOKEN = "attacking-caller-0123456789"  # noqa: S105
DATASET = "small"
SAMPLES = 2000

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["attacks.harness"])
_READY_S = 60.0
# How much longer than it was told to an attack may run.
_LATE_S = 30.0
_ROUNDS = 5
# How soon a server answers after an attack that takes a proxy, and how much it may grow in it: as
# many calls as gRPC holds and as wait in lines, of 50 KiB each.
_ANSWERS_S = 10.0
_MOST_GROWTH_BYTES = 1 << 30
_SLICE_S = 0.02


@dataclass(frozen=True, slots=True)
class Target:
    """What an attacker is told of the server.

    Attributes:
        address: ``host:port``, in clear text.
        token: Of a caller that may read everything; an attack may also come without.
        pid: The server's process.
    """

    address: str
    token: str
    pid: int

    @property
    def place(self) -> tuple[str, int]:
        """Host and port, for a socket."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The attacker's token as gRPC takes it."""
        return (("authorization", f"Bearer {self.token}"),)


Counts = Mapping[str, float]
"""What an attack did, for the report."""

Begin = Callable[[], float]
"""Called once, when all is prepared or open: the honest caller is watched from then on. Returns
until when to attack, by `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class After:
    """What is left when an attack is over.

    Attributes:
        counts: What the attack did.
        log: What the server has logged since the attack began.
        pid: The server's process.
        seconds: How long it took, burning included.
    """

    counts: Counts
    log: str
    pid: int
    seconds: float


def _nothing(_after: After) -> list[str]:
    return []


def _no_more(_folder: Path) -> dict[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Attributes:
        title: What is done to the server, in a few words.
        strike: Attacks, in a process of its own, until the moment that its `Begin` returns, and
            closes what it opened. A function of the module, not a lambda.
        options: Of ``headrace serve``, beside those that every attack has. A server that is
            started for one attack takes a second or two; attacks with equal ones share it.
        datasets: Writes more datasets into a folder, and returns their URLs by name.
        nofile: Descriptors that the server may have open; 0 leaves it as it is.
        attacker_streams: That the attacker's token may have open, so that it cannot take all
            places of the server; 0 for as many as the server.
        check: Returns what is wrong afterwards, beside what is checked after every attack.
        may_be_refused: Whether the honest caller may be told to wait (``RESOURCE_EXHAUSTED`` with
            a ``RetryInfo``); it then waits and tries again.
        may_lose_server: Whether the process that the honest caller calls may end (``UNAVAILABLE``);
            it then calls again, on a connection to another.
        long_seconds: Least time of its long form.
        least_share: Of the rate that the honest caller has beside a process that only burns.
        has_tokens: Whether the server has a file of tokens.
        needs_proxy: Whether it takes a proxy to keep an honest caller's rate.
        host: Where the server listens.
    """

    title: str
    strike: Callable[[Target, Begin], Counts]
    options: tuple[str, ...] = ()
    datasets: Callable[[Path], dict[str, str]] = _no_more
    nofile: int = 0
    attacker_streams: int = 64
    check: Callable[[After], list[str]] = _nothing
    may_be_refused: bool = False
    may_lose_server: bool = False
    long_seconds: float = 0.0
    least_share: float = 0.5
    has_tokens: bool = True
    needs_proxy: bool = False
    host: str = "127.0.0.1"


@dataclass(slots=True)
class Report:
    """What came of an attack.

    Attributes:
        title: Of the attack.
        attacked: What the honest caller saw beside the attack.
        burnt: What it saw beside a process that took the same processor time.
        counts: What the attack did.
        attacker_processors: How many processors the attacker kept busy.
        wrong: Whatever must not be.
        memory_bytes: Of the server, before and after.
    """

    title: str
    attacked: Seen = field(default_factory=Seen)
    burnt: Seen = field(default_factory=Seen)
    counts: dict[str, float] = field(default_factory=dict)
    attacker_processors: float = 0.0
    wrong: list[str] = field(default_factory=list)
    memory_bytes: tuple[int, int] = (0, 0)

    @property
    def share(self) -> float:
        """The honest caller's rate beside the attack, as a part of that beside the burner."""
        return self.attacked.rate / self.burnt.rate if self.burnt.rate else 0.0

    def __str__(self) -> str:
        did = ", ".join(f"{name} {count:,.0f}" for name, count in self.counts.items())
        before, after = (size / 2**20 for size in self.memory_bytes)
        lines = [
            f"{self.title}: {did or 'nothing'}; {self.attacker_processors:.2f} processors",
            f"  honest caller beside it:      {self.attacked}",
            f"  honest caller beside a burner: {self.burnt}",
            f"  share {self.share:.2f}; server {before:.0f} MiB before, {after:.0f} MiB after",
            *(f"  WRONG: {one}" for one in self.wrong),
        ]
        return "\n".join(lines)


class Scene:
    """A server with an honest caller; `scene` makes one.

    Attributes:
        serving: The server.
    """

    def __init__(self, serving: Serving, address: str, log: Path, honest: Connection) -> None:
        self.serving = serving
        self._address = address
        self._log = log
        self._honest = honest

    @property
    def target(self) -> Target:
        """What an attacker is told."""
        return Target(self._address, ATTACKER_TOKEN, self.serving.process.pid)

    def log_from(self, begin: int) -> str:
        """Return what the server has logged from a byte on."""
        return self._log.read_bytes()[begin:].decode(errors="replace")

    @property
    def log_size(self) -> int:
        """Bytes that the server has logged."""
        return self._log.stat().st_size

    @property
    def memory_bytes(self) -> int:
        """Memory of the server and of its workers."""
        return sum(map(_memory_bytes, family(self.serving.process.pid)))

    @contextmanager
    def watched(self, attack: Attack, *, may_be_cut: bool = False) -> Iterator[Seen]:
        """Let the honest caller work; what it has seen is there when the block ends.

        Args:
            attack: Says what the caller may meet.
            may_be_cut: Whether its calls may be cut, too, since they had no room.
        """
        seen = Seen()
        self._honest.send(
            {
                "may_be_refused": attack.may_be_refused,
                "may_lose_server": attack.may_lose_server,
                "may_be_cut": may_be_cut,
            }
        )
        try:
            yield seen
        finally:
            self._honest.send("stop")
            if not self._honest.poll(_READY_S):
                raise TimeoutError("the honest caller says nothing")
            seen.add(self._honest.recv())


def _start_forkserver() -> None:
    """Start the process from which the others are forked, with all of this one's path.

    Python 3.11 preloads with its own path alone (python/cpython#117378); without it each process
    would import everything again, for seconds. Nobody else may see the variable: pip, say, would
    not install into another environment what it finds in ours.
    """
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


@contextmanager
def scene(
    attack: Attack, folder: Path, others: Iterable[Attack] = (), *, has_proxy: bool = False
) -> Iterator[Scene]:
    """Start what an attack needs.

    Args:
        attack: Says with which options.
        folder: For datasets and the log.
        others: Attacks with the same options, whose datasets are served too.
        has_proxy: Whether everybody calls the server through Envoy.
    """
    _start_forkserver()
    url = str(folder / DATASET)
    write_dataset(url, small_table(SAMPLES), shard_samples=[SAMPLES // 4] * 4, block_bytes=16_384)
    tokens, log = folder / "tokens.json", folder / "server.log"
    tokens.write_text(_tokens(attack.attacker_streams))
    tokens.chmod(0o600)
    datasets = {DATASET: url}
    for write in {one.datasets for one in (attack, *others)}:
        datasets |= write(folder)
    health = f"127.0.0.1:{free_port()}"
    options = (f"--listen={attack.host}:0", f"--health-listen={health}", *attack.options)
    if attack.has_tokens:
        options = (f"--tokens={tokens}", *options)
    with ExitStack() as stack:
        stderr = stack.enter_context(log.open("w"))
        server = stack.enter_context(
            serving(datasets, *options, stderr=stderr, nofile=attack.nofile)
        )
        address = server.address
        if has_proxy:
            address = stack.enter_context(envoy(folder, server=server.address, health=health))
        yield Scene(server, address, log, stack.enter_context(_honest_caller(address, health)))


def judge(attack: Attack, scene: Scene, *, seconds: float) -> Report:
    """Attack for some seconds, and burn for as many; repeat a little where the rate is low.

    Args:
        attack: What to do.
        scene: Made for this attack, or for one with equal options.
        seconds: Of one round, of attack and of burning each.
    """
    report = Report(attack.title)
    begin, before, began = scene.log_size, scene.memory_bytes, time.monotonic()
    for _ in range(_ROUNDS):
        _round(attack, scene, report, seconds)
        if report.share >= attack.least_share or report.attacked.errors:
            break
    report.memory_bytes = (before, scene.memory_bytes)
    seconds = time.monotonic() - began
    after = After(report.counts, scene.log_from(begin), scene.serving.process.pid, seconds)
    report.wrong = [*_always_wrong(attack, report, after), *attack.check(after)]
    return report


def survive(attack: Attack, scene: Scene, *, seconds: float) -> Report:
    """Attack for some seconds, and see whether the server answers soon after.

    Args:
        attack: What to do.
        scene: Made for this attack, or for one with equal options.
        seconds: Of the attack.
    """
    report = Report(attack.title)
    begin, before = scene.log_size, scene.memory_bytes
    most = before
    with _process(_strike, attack.strike, scene.target, seconds) as attacker:
        _receive(attacker, "under way", _READY_S)
        end = time.monotonic() + seconds + _LATE_S
        while not attacker.poll(0.1) and time.monotonic() < end:
            most = max(most, scene.memory_bytes)
        _receive(attacker, "over", _LATE_S)
        counts, report.attacker_processors = _receive(attacker, "result", _LATE_S)
    report.counts = dict(counts)
    after = replace(attack, may_be_refused=True, may_lose_server=True)
    with scene.watched(after, may_be_cut=True) as seen:
        time.sleep(min(_ANSWERS_S, max(1.0, seconds)))
    report.attacked.add(seen)
    report.memory_bytes = (before, max(most, scene.memory_bytes))
    if not seen.turns or seen.longest_s > _ANSWERS_S:
        report.wrong.append(f"no answer within {_ANSWERS_S:.0f} s of the attack's end")
    if report.memory_bytes[1] - before > _MOST_GROWTH_BYTES:
        report.wrong.append(f"the server grew by {(report.memory_bytes[1] - before) >> 20} MiB")
    left = After(report.counts, scene.log_from(begin), scene.serving.process.pid, seconds)
    report.wrong += _always_wrong(replace(attack, least_share=0.0), report, left)
    return report


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    with suppress(FileNotFoundError):
        texts = [one.read_text() for one in Path(f"/proc/{pid}/task").glob("*/children")]
        return [pid, *(one for child in " ".join(texts).split() for one in family(int(child)))]
    return [pid]


def main(attack: Attack) -> int:
    """Run one attack as a program; return its exit code."""
    parser = argparse.ArgumentParser(description=attack.title)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round (20)")
    parser.add_argument("--envoy", action="store_true", help="call the server through Envoy")
    parser.add_argument("--survive", action="store_true", help="ask only whether it lives")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        scene(attack, Path(folder), has_proxy=arguments.envoy) as made,
    ):
        judged = survive if arguments.survive else judge
        report = judged(attack, made, seconds=arguments.seconds)
    sys.stdout.write(f"{report}\n")
    return 1 if report.wrong else 0


def all_attacks() -> dict[str, Attack]:
    """Return the attacks of this folder, by the names of their modules."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("a[0-9][0-9]_*.py"))
    return {name: importlib.import_module(f"attacks.{name}").ATTACK for name in names}


def _round(attack: Attack, scene: Scene, report: Report, seconds: float) -> None:
    with _process(_strike, attack.strike, scene.target, seconds) as attacker:
        _receive(attacker, "under way", _READY_S)
        with scene.watched(attack) as attacked:
            _receive(attacker, "over", seconds + _LATE_S)
        counts, processors = _receive(attacker, "result", _LATE_S)
    report.attacked.add(attacked)
    for name, count in counts.items():
        report.counts[name] = report.counts.get(name, 0) + count
    report.attacker_processors = processors
    with _process(_burn, processors, seconds) as burner:
        _receive(burner, "under way", _READY_S)
        with scene.watched(attack) as burnt:
            _receive(burner, "over", seconds + _LATE_S)
    report.burnt.add(burnt)


def _always_wrong(attack: Attack, report: Report, after: After) -> Iterator[str]:
    for error, count in report.attacked.errors.items():
        yield f"the honest caller saw {count} times {error}"
    for error, count in report.burnt.errors.items():
        yield f"the honest caller saw {count} times {error} after the attack"
    if report.share < attack.least_share:
        yield f"the honest caller had {report.share:.2f} of its rate, below {attack.least_share}"
    if "Traceback" in after.log:
        yield f"the server logged a traceback: {after.log[after.log.index('Traceback') :][:600]}"
    if not _memory_bytes(after.pid):
        yield "the server has ended"


def _memory_bytes(pid: int) -> int:
    """Return the memory of a process; 0 where it has ended."""
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def _tokens(attacker_streams: int) -> str:
    callers = (("honest", HONEST_TOKEN, 0), ("attacker", ATTACKER_TOKEN, attacker_streams))
    return json.dumps(
        {
            "tokens": [
                {
                    "name": name,
                    "sha256": hashlib.sha256(token.encode()).hexdigest(),
                    "datasets": ["*"],
                    "max_streams": most,
                }
                for name, token, most in callers
            ]
        }
    )


@contextmanager
def _honest_caller(address: str, health: str) -> Iterator[Connection]:
    ours, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(
        target=work, args=(address, health, HONEST_TOKEN, DATASET, theirs), name="honest"
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(_READY_S) or ours.recv() != "ready":
            raise TimeoutError("the honest caller was not ready in time")
        yield ours
    finally:
        ours.close()
        _end(process)


@contextmanager
def _process(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run a function that is given a connection last; yield the other end of it."""
    ours, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        _end(process)


def _receive(connection: Connection, name: str, timeout_s: float) -> Any:
    """Return what a process sends under a name.

    Raises:
        TimeoutError: It did not.
    """
    if not connection.poll(timeout_s):
        raise TimeoutError(f"expected {name!r} within {timeout_s:.0f} s; nothing came")
    found, value = connection.recv()
    assert name == found
    return value


def _end(process: BaseProcess) -> None:
    process.join(_LATE_S)
    if process.is_alive():
        process.kill()
        process.join()


def _strike(
    strike: Callable[[Target, Begin], Counts], target: Target, seconds: float, said: Connection
) -> None:
    began: list[tuple[float, float]] = []

    def begin() -> float:
        began.append((time.monotonic(), _processor_s()))
        said.send(("under way", None))
        return began[0][0] + seconds

    counts = strike(target, begin)
    (since, before), now, used = began[0], time.monotonic(), _processor_s()
    said.send(("over", None))
    said.send(("result", (dict(counts), (used - before) / (now - since))))
    # Threads of gRPC's that wait for requests would hold up an orderly end for seconds.
    os._exit(0)


def _burn(processors: float, seconds: float, said: Connection) -> None:
    """Keep a part of a processor busy, or several: without a call, and without waking anybody."""
    others = [
        _PROCESSES.Process(target=_burn_one, args=(min(1.0, processors - index), seconds))
        for index in range(1, int(processors) + 1)
    ]
    for other in others:
        other.start()
    said.send(("under way", None))
    _burn_one(min(1.0, processors), seconds)
    for other in others:
        other.join()
    said.send(("over", None))


def _burn_one(part: float, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        while time.monotonic() < now + part * _SLICE_S:
            pass
        time.sleep((1 - part) * _SLICE_S)


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
