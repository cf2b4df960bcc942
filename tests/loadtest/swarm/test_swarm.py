"""A swarm against a real server, and against servers that lie."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.client import Deadlines
from headrace.loadtest import (
    Pause,
    Progress,
    Proof,
    Rescale,
    SwarmResult,
    SwarmSpec,
    check_tokens,
    draw,
    prove,
    run_swarm,
    summarise,
)
from headrace.order import EndMode, Order, OrderSpec, table_of
from headrace.storage import open_dataset
from support.datasets import small_table, write_dataset
from support.liar import Lie, alter, exchange, liar, lose, repeat, tell_the_truth
from support.running import server_of
from support.transports import listen_for

_SAMPLES = 1000
_GLOBAL_BATCH = 50


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 20 global batches."""
    where = str(tmp_path_factory.mktemp("loadtest") / "ds")
    write_dataset(where, small_table(_SAMPLES), shard_samples=[400, 400, 200])
    return where


@pytest.fixture(scope="module")
def address(url: str) -> Iterator[str]:
    """A real server of it."""
    with server_of({"ds": url}) as server:
        yield server.address


def _spec(address: str, **changed: object) -> SwarmSpec:
    spec = SwarmSpec(
        targets=(address,),
        dataset="ds",
        sample_count=_SAMPLES,
        order=OrderSpec(seed=3, shuffle_samples=200, unit=_GLOBAL_BATCH),
        global_batch_size=_GLOBAL_BATCH,
        ranks=4,
        steps=40,
        columns=("number",),
        deadlines=Deadlines(connect_s=60, give_up_s=60),
    )
    return replace(spec, **changed)  # type: ignore[arg-type] # tests name the settings they mean


def _orders(url: str, spec: SwarmSpec) -> list[Order]:
    with open_dataset(url) as dataset:
        table = table_of(dataset.stretches())
    return [
        Order(replace(spec.order, seed=spec.order.seed + job), table) for job in range(spec.jobs)
    ]


def test_a_run_that_is_told_to_stop_proves_what_it_read(address: str, url: str) -> None:
    """In its second part, of three ranks: the first is whole, and nothing counts as lost."""
    spec = _spec(address, steps=10_000, step_s=0.01, processes=2, rescales=(Rescale(3, 0.001),))
    stop = threading.Event()

    def progress(now: Progress) -> None:
        if now.batches > 4 * 10:
            stop.set()

    result = run_swarm(spec, progress=progress, stop=stop)
    proof = prove(result, _orders(url, spec))

    assert proof.holds, proof
    assert 4 * 10 < proof.batches < 3 * 10_000
    assert proof.digest == proof.wanted_digest
    assert (0, 0) == (proof.epochs_whole, proof.epochs_complete)
    assert [4, 3] == [part.world_size for part in result.generations]
    assert summarise(result).samples_per_s > 0


def test_a_rescaled_run_of_two_jobs_is_proved(address: str, url: str, tmp_path: Path) -> None:
    """4 ranks, then 3, in two processes and two jobs: everything once, in order, as planned."""
    spec = _spec(
        address,
        jobs=2,
        processes=2,
        rescales=(Rescale(3, 0.4),),
        pauses=(Pause(rank=1, seconds=0.1, share=0.2),),
    )
    seen: list[Progress] = []

    result = run_swarm(spec, progress=seen.append)
    proof = prove(result, _orders(url, spec))
    tokens = check_tokens(result, targets=spec.targets, most=6)
    summary = summarise(result)
    draw(result, tmp_path / "run.svg")

    assert proof.holds, proof
    assert proof.digest == proof.wanted_digest
    assert 2 * (16 * 4 + 24 * 3) == proof.batches == seen[-1].batches_wanted
    assert 2 * 2 * _SAMPLES == proof.samples
    assert (4, 4) == (proof.epochs_whole, proof.epochs_complete)
    assert (6, 0) == (tokens.tokens, tokens.wrong)
    assert summary.samples_per_s > 0
    assert {"p50", "p90", "p99", "p99.9"} == set(summary.wait_ms)
    assert 0 < summary.fairness <= 1
    assert (tmp_path / "run.svg").read_text().startswith("<?xml")


def test_a_run_through_rings_is_proved_too(url: str) -> None:
    """Shared memory alone (gRPC would be an error): the same digest as the plan's."""
    with (
        listen_for("ring") as listen,
        server_of({"ds": url}, listen=listen) as server,
    ):
        spec = _spec(server.address, transport="ring", prefetch_bytes=1 << 20)
        proof = prove(run_swarm(spec), _orders(url, spec))

    assert proof.holds, proof
    assert proof.digest == proof.wanted_digest


def test_the_digest_depends_on_the_seed_alone(address: str) -> None:
    """Other numbers of ranks see the same; another seed does not."""
    specs = [
        _spec(address, ranks=1, steps=20),
        _spec(address, ranks=5, steps=20, end=EndMode.UNEVEN),
        _spec(
            address,
            ranks=1,
            steps=20,
            order=OrderSpec(seed=4, shuffle_samples=200, unit=_GLOBAL_BATCH),
        ),
    ]

    digests = [prove(run_swarm(spec), None).digest for spec in specs]

    assert digests[0] == digests[1] != digests[2]


def test_a_run_of_bounded_time_loses_nothing(address: str, url: str) -> None:
    """Ranks that are stopped anywhere have received what comes first, and nothing else."""
    spec = _spec(address, steps=1 << 40, seconds=0.5, step_s=0.01)

    proof = prove(run_swarm(spec), _orders(url, spec))

    assert proof.holds, proof
    assert proof.batches


def _run_with(honest: str, lie: Lie) -> tuple[SwarmSpec, SwarmResult]:
    with liar(honest, lie, sample_count=_SAMPLES) as address:
        # Shorter than an epoch: at its end the client itself would notice.
        spec = _spec(address, ranks=2, steps=10)
        return spec, run_swarm(spec)


def test_the_honest_relay_is_believed(address: str, url: str) -> None:
    """The relay of the tests below changes nothing by itself."""
    spec, result = _run_with(address, tell_the_truth)

    assert prove(result, _orders(url, spec)).holds


@pytest.mark.parametrize(
    ("lie", "fault"),
    [(lose, "lost"), (repeat, "repeated"), (exchange, "out_of_order"), (alter, "altered")],
    ids=["lost", "repeated", "out of order", "altered"],
)
def test_lies_are_found(address: str, url: str, lie: Lie, fault: str) -> None:
    """A batch left out, sent twice, too late or with two samples exchanged fails both ranks."""
    spec, result = _run_with(address, lie)

    proof = prove(result, _orders(url, spec))

    assert not proof.holds
    assert 2 == getattr(proof, fault), proof
    assert proof.examples


def test_nothing_received_is_no_proof_of_anything() -> None:
    """A proof without batches holds of nothing; the command fails then."""
    assert 0 == Proof().batches


def test_ranks_that_give_up_are_named() -> None:
    """No server: every rank says so, and nothing is claimed to be lost."""
    spec = _spec("127.0.0.1:9", deadlines=Deadlines(connect_s=0.5, give_up_s=0.5))

    result = run_swarm(spec)
    summary = summarise(result)

    assert 4 == len(summary.failed)
    assert "SERVER_UNREACHABLE" in summary.failed[0]
    assert 0 == prove(result, None).batches


def test_killed_trainers_go_on_from_their_checkpoint(address: str, url: str) -> None:
    """All processes killed twice: what came after a checkpoint is read again, all of it once.

    A process may start two seconds after another; it has passed a checkpoint when they are killed.
    """
    spec = _spec(
        address,
        jobs=2,
        processes=2,
        steps=60,
        step_s=0.1,
        crashes=(0.4, 0.9),
        checkpoint_steps=5,
        rescales=(Rescale(3, 0.5),),
    )

    result = run_swarm(spec)
    proof = prove(result, _orders(url, spec))

    assert proof.holds, proof
    assert (6, 6) == (proof.epochs_whole, proof.epochs_complete)
    assert 3 <= len(result.generations)
    assert [4, 3] == sorted({part.world_size for part in result.generations}, reverse=True)
    ends = [part.end_step for part in result.generations]
    assert [0, *ends[:-1]] == [part.first_step for part in result.generations]
