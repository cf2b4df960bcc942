"""Everything goes wrong at once: servers, trainers and the store; and then the proof.

Three replicas of the server read a real S3 store that throttles and cuts answers off; eight ranks
read from all three. Replicas are killed with SIGKILL in a random order and started again, all
trainers are killed twice, and their number changes twice. At the end every sample must have come
exactly once, in the order that the manifest says.

    python -m chaos.storm --epochs 20 --seed 7          (with tests/ and examples/ on PYTHONPATH)

`make chaos` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from demo.object_store import Weed, start_weed
from headrace.client import Deadlines
from headrace.loadtest import (
    Kill,
    Proof,
    Rescale,
    Summary,
    SwarmSpec,
    TokenCheck,
    check_tokens,
    prove,
    run_faults,
    run_swarm,
    summarise,
)
from headrace.order import EndMode, Order, OrderSpec, table_of
from headrace.storage import StoreOptions, open_dataset
from support.datasets import small_table, write_dataset
from support.store_proxy import StoreProxy, store_proxied

_HEADRACE = Path(sys.executable).parent / "headrace"
_REPLICAS = 3
_RANKS = 8
_SAMPLES = 4000
_GLOBAL_BATCH = 80
_STEPS_AN_EPOCH = _SAMPLES // _GLOBAL_BATCH
_READY_S = 120


@dataclass(frozen=True, slots=True)
class Storm:
    """What went wrong, and what came of it."""

    proof: Proof
    tokens: TokenCheck
    summary: Summary
    kills: int
    crashes: int
    refused: int
    cut: int

    @property
    def survived(self) -> bool:
        """Whether nothing was lost, repeated or altered, although enough went wrong."""
        return self.proof.holds and not self.tokens.wrong and not self.summary.failed


def run_storm(
    folder: Path, weed: Weed, *, seed: int, epochs: int, step_s: float = 0.02, kill_s: float = 4.0
) -> Storm:
    """Run one.

    Args:
        folder: For logs.
        weed: The real store.
        seed: Of the order, and of all that goes wrong.
        epochs: Epochs to read.
        step_s: Seconds of a simulated training step.
        kill_s: Seconds between two kills of a server, at least.
    """
    chance = random.Random(seed)
    url = weed.url(f"storm-{seed}")
    options = StoreOptions(
        endpoint=weed.endpoint, access_key=weed.access_key, secret_key=weed.secret_key
    )
    order = _write(
        url, options, OrderSpec(seed=seed, shuffle_samples=500, unit=_GLOBAL_BATCH, lanes=2)
    )
    with ExitStack() as stack:
        store = stack.enter_context(store_proxied(weed.endpoint))
        store.at_random({"throttle": 0.1, "cut": 0.05}, seed=seed)
        replicas = stack.enter_context(_replicas(folder, weed, store, url))
        chance.shuffle(replicas)
        spec = _swarm([replica.address for replica in replicas], order.spec, epochs, step_s, chance)
        pulse = _Pulse()
        victims = [replica.victim for replica in replicas]
        stack.enter_context(
            run_faults(victims, proxies=[], cuts=[], every_s=kill_s, batches=lambda: pulse.batches)
        )
        result = run_swarm(spec, progress=pulse)
        return Storm(
            proof=prove(result, [order]),
            tokens=check_tokens(result, targets=spec.targets, most=4, seed=seed),
            summary=summarise(result),
            kills=sum(victim.count for victim in victims),
            crashes=len(spec.crashes),
            refused=store.met["throttle"],
            cut=store.met["cut"],
        )


class _Pulse:
    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, progress: object) -> None:
        self.batches = int(getattr(progress, "batches", 0))


def _write(url: str, options: StoreOptions, spec: OrderSpec) -> Order:
    write_dataset(url, small_table(_SAMPLES), shard_samples=[500] * (_SAMPLES // 500))
    with open_dataset(url, options=options) as dataset:
        table = table_of(dataset.stretches())
    return Order(spec, table)


def _swarm(
    addresses: Sequence[str], order: OrderSpec, epochs: int, step_s: float, chance: random.Random
) -> SwarmSpec:
    shares = sorted(chance.uniform(0.1, 0.9) for _ in range(4))
    return SwarmSpec(
        targets=tuple(addresses),
        dataset="storm",
        sample_count=_SAMPLES,
        order=order,
        global_batch_size=_GLOBAL_BATCH,
        ranks=_RANKS,
        steps=epochs * _STEPS_AN_EPOCH,
        end=EndMode.UNEVEN,
        step_s=step_s,
        processes=2,
        prefetch_bytes=1 << 16,
        rescales=(Rescale(5, shares[0]), Rescale(_RANKS, shares[2])),
        crashes=(shares[1], shares[3]),
        deadlines=Deadlines(connect_s=_READY_S, give_up_s=_READY_S),
    )


@dataclass(frozen=True, slots=True)
class _Replica:
    address: str
    victim: Kill


@contextmanager
def _replicas(folder: Path, weed: Weed, store: StoreProxy, url: str) -> Iterator[list[_Replica]]:
    environment = {**os.environ, **weed.environment(), "AWS_ENDPOINT_URL": store.endpoint}
    replicas: list[_Replica] = []
    before = dict(os.environ)
    os.environ.update(environment)  # for those that are started again
    processes = []
    try:
        for number in range(_REPLICAS):
            address = f"127.0.0.1:{_free_port()}"
            command = [str(_HEADRACE), "serve", "--listen", address, f"storm={url}"]
            with (folder / f"server-{number}.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
            processes.append(process)
            replicas.append(_Replica(address, Kill(process.pid, restart=command)))
        for replica in replicas:
            _wait_until_ready(replica.address)
        yield replicas
    finally:
        os.environ.clear()
        os.environ.update(before)
        for process in processes:
            process.kill()
            process.wait(20)
        for replica in replicas:
            replica.victim.end()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _wait_until_ready(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=_READY_S)


def main() -> int:
    """Run storms until the time is over; the entry point of ``make chaos``."""
    parser = argparse.ArgumentParser(description="Run storms, and prove that nothing was lost.")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first storm")
    parser.add_argument("--storms", type=int, default=5, help="how many, each with the next seed")
    parser.add_argument("--epochs", type=int, default=20, help="of each storm")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, start_weed(Path(folder) / "weed") as weed:
        os.environ.update(weed.environment())
        for seed in range(given.seed, given.seed + given.storms):
            storm = run_storm(Path(folder), weed, seed=seed, epochs=given.epochs)
            failed += not storm.survived
            print(json.dumps(_told(seed, storm)), flush=True)  # noqa: T201 - what the command is for
    return 1 if failed else 0


def _told(seed: int, storm: Storm) -> dict[str, object]:
    return {
        "seed": seed,
        "survived": storm.survived,
        "samples": storm.proof.samples,
        "lost": storm.proof.lost,
        "repeated": storm.proof.repeated,
        "altered": storm.proof.altered,
        "digests_equal": storm.proof.digest == storm.proof.wanted_digest,
        "servers_killed": storm.kills,
        "trainers_killed": storm.crashes,
        "throttled": storm.refused,
        "cut_off": storm.cut,
        "reconnects": storm.summary.reconnects,
        "seconds": round(storm.summary.elapsed_s, 1),
        "examples": [*storm.proof.examples, *storm.tokens.examples, *storm.summary.failed],
    }


if __name__ == "__main__":
    sys.exit(main())
