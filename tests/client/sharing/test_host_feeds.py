"""Claims about processes of a host that share a stream: each gets what it would get alone.

How it could go wrong. A wrong sample: memory that is written again while a slow process still
copies from it; a process that takes over at the place of another; two that ask for different
batches, or are at different places, and get the same. A hang: one waits for another that is dead,
stopped, at another place, or idle; a forked child keeps the sockets of a dead parent open. Somebody
gets in: another user connects, or finds a file that he may open.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from headrace.client import NumpyDataset, RemoteDataset, Sharding, Transport
from headrace.client.options.settings import Hedge
from headrace.errors import BadArgumentError
from support.datasets import write_rows
from support.host_job import digest
from support.running import server_of

JOB = Path(__file__).parents[2] / "support" / "host_job.py"
BATCHES, WIDTH = 40, 256
EPOCH_BYTES = 8 * BATCHES * WIDTH * 4


@dataclass(frozen=True, slots=True)
class World:
    """A server, and what one process alone gets of it."""

    server: Any
    batches: list[str]
    tokens: list[str]

    @property
    def sent(self) -> float:
        """Payload bytes that the server has sent."""
        with urlopen(f"http://{self.server.metrics_address}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        name = "headrace_sent_payload_bytes_total"
        return sum(float(line.split()[1]) for line in lines if line.startswith(name))

    def play(self, name: str) -> Any:
        """Return what came of a scenario."""
        job = [sys.executable, str(JOB), "scenario", name, self.server.address]
        done = subprocess.run(job, check=True, timeout=200, stdout=subprocess.PIPE)
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Serve a small dataset."""
    folder = tmp_path_factory.mktemp("d")
    write_rows(str(folder / "d"), sample_count=8 * BATCHES, width=WIDTH)
    with server_of({"d": str(folder / "d")}, metrics_listen="127.0.0.1:0") as server:
        batches, tokens = [], []
        with NumpyDataset(server.address, "d", batch_size=8, seed=7, epochs=20) as dataset:
            for _ in range(20):
                for arrays in dataset:
                    batches.append(digest(arrays["x"]))
                    tokens.append((dataset.token or b"").hex())
        yield World(server, batches, tokens)


@pytest.mark.parametrize("name", ["together", "workers"])
def test_a_host_reads_each_byte_once(world: World, name: str) -> None:
    """With and without a device, a function and workers, and as NumPy arrays."""
    before = world.sent

    found = world.play(name)

    assert [[wanted] * len(found["found"][0]) for wanted in world.batches[:80]] == found["found"]
    assert world.sent - before <= 1.05 * 2 * EPOCH_BYTES
    if name == "together":
        own = ["shared: this process reads for this host" == each for each in found["reasons"]]
        assert sorted(own) == [False, False, False, True]


def test_another_takes_over_from_one_that_dies_while_it_opens(world: World) -> None:
    """However far it has got."""
    for each in world.play("opening")["found"]:
        assert [[wanted] * 2 for wanted in world.batches[:10]] == each


def test_another_takes_over_from_one_that_is_stopped(world: World) -> None:
    """The one that was stopped goes on where it was."""
    found = world.play("stopped")

    assert [[wanted] * 3 for wanted in world.batches[:1]] == found["found"][:1]
    assert [[wanted] * 2 for wanted in world.batches[1:40]] == found["found"][1:]
    assert [[wanted] for wanted in world.batches[1:40]] == found["alone"]
    assert all(each.startswith("shared: ") for each in found["reasons"])


def test_one_that_takes_nothing_is_left_behind(world: World) -> None:
    """And reads alone what it has missed."""
    found = world.play("idle")

    assert [[wanted] for wanted in world.batches[1:80]] == found["found"][1:]
    assert [[wanted] for wanted in world.batches[1:80]] == found["alone"]


def test_a_child_of_a_dead_process_holds_nobody_up(world: World) -> None:
    """The child has copies of its sockets and its lock."""
    found = world.play("forked")

    assert [[wanted] for wanted in world.batches[1:40]] == found["found"][1:]
    # Nobody waits for the silence of 3 s.
    assert found["seconds"] < 2.5


def test_all_hear_of_an_error(world: World) -> None:
    """Each time that they ask."""
    assert [["DatasetNotFoundError"] * 3] * 2 == world.play("gone")["found"]


def _histories(world: World, folder: Path, first: int, count: int, actions: int) -> None:
    right = folder / "right.json"
    right.write_text(json.dumps([world.batches, world.tokens]))
    arguments = [world.server.address, str(right), str(first), str(count), str(actions)]
    subprocess.run([sys.executable, str(JOB), "histories", *arguments], check=True, timeout=1200)


def test_random_histories(world: World, tmp_path: Path) -> None:
    """Processes that die between and within steps, join, reshard and load states."""
    _histories(world, tmp_path, 0, 8, 6)


@pytest.mark.long
def test_many_random_histories(world: World, tmp_path: Path) -> None:
    """The same, 200 of them."""
    _histories(world, tmp_path, 1000, 200, 10)


def _options(**options: Any) -> Any:
    return {"batch_size": 8, "rank": 0, "world_size": 2, "mesh": {"tp": 2}, **options}


def test_only_this_user_finds_the_place(world: World, tmp_path: Path) -> None:
    """A folder for others is not used, and the reason is told."""
    runtime = tmp_path / "run"
    (runtime / "headrace").mkdir(parents=True, mode=0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        sharing = Sharding(share="ring")
        with RemoteDataset(world.server.address, "d", **_options(sharding=sharing)) as dataset:
            next(iter(dataset))
            reason = dataset.stats().transport_reason
            assert "not shared: " in reason
            assert "mode 755" in reason
            dataset.close()
            (runtime / "headrace").chmod(0o700)
            next(iter(dataset))
            assert "shared: this process" in dataset.stats().transport_reason
            modes = [stat.S_IMODE(each.stat().st_mode) for each in runtime.glob("headrace/*.lock")]
            assert [0o600] == modes
    assert not list((runtime / "headrace").iterdir())


def test_a_process_without_peers_reads_alone_and_says_why(world: World) -> None:
    """Where no mesh says that others get the same."""
    with NumpyDataset(
        world.server.address, "d", batch_size=8, sharding=Sharding(share="auto")
    ) as dataset:
        next(iter(dataset))
        assert "not shared: no mesh says" in dataset.transport_reason


def test_what_asks_for_itself_cannot_be_shared() -> None:
    """Hedges, and a ring where there must be one."""
    with pytest.raises(BadArgumentError, match="hedge"):
        RemoteDataset(
            "x:1",
            "d",
            **_options(sharding=Sharding(share="ring"), transport=Transport(hedge=Hedge())),
        )


def test_ranks_of_another_host_are_not_waited_for(world: World) -> None:
    """A launcher says how many ranks a host has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "1")
        with NumpyDataset(
            world.server.address, "d", **_options(sharding=Sharding(share="ring"))
        ) as dataset:
            next(iter(dataset))
            assert "no other rank of this host" in dataset.transport_reason
