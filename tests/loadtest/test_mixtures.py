"""A swarm that draws from a mixture: every draw once, as the manifests say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from headrace.client import Deadlines, Mixture, MixtureEntry
from headrace.loadtest import Rescale, SwarmResult, SwarmSpec, check_tokens, prove, run_swarm
from headrace.order import EndMode, MixtureOrder, OrderSpec, table_of
from headrace.storage import open_dataset
from support.datasets import small_table, write_dataset
from support.running import server_of

_SIZES = {"a": 300, "b": 120}
_GLOBAL_BATCH = 30
_MIXTURE = Mixture((MixtureEntry("a", choose=200), MixtureEntry("b", repeat=1.5)))
_EPOCH = 200 + 180


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Two datasets."""
    found = {}
    for name, count in _SIZES.items():
        found[name] = str(tmp_path_factory.mktemp("mixtures") / name)
        write_dataset(found[name], small_table(count), shard_samples=[count // 2] * 2)
    return found


@pytest.fixture(scope="module")
def run(urls: Mapping[str, str]) -> Iterator[SwarmResult]:
    """Three epochs of the mixture by four ranks, then three, in two jobs; the server lives on."""
    with server_of(dict(urls)) as server:
        spec = SwarmSpec(
            targets=(server.address,),
            dataset="",
            mixture=_MIXTURE,
            first_ids=(0, _SIZES["a"]),
            sample_count=_EPOCH,
            order=OrderSpec(seed=3, shuffle_samples=100, unit=_GLOBAL_BATCH),
            global_batch_size=_GLOBAL_BATCH,
            ranks=4,
            jobs=2,
            steps=39,
            end=EndMode.UNEVEN,
            rescales=(Rescale(3, 0.5),),
            columns=("number",),
            deadlines=Deadlines(connect_s=60, give_up_s=60),
        )
        yield run_swarm(spec)


def _orders(run: SwarmResult, urls: Mapping[str, str], mixture: Mixture) -> list[MixtureOrder]:
    tables = []
    for url in urls.values():
        with open_dataset(url) as dataset:
            tables.append(table_of(dataset.stretches()))
    jobs = [replace(run.spec.order, seed=run.spec.order.seed + job) for job in range(run.spec.jobs)]
    return [MixtureOrder(mixture.spec(order), tables) for order in jobs]


def test_every_draw_comes_once(run: SwarmResult, urls: Mapping[str, str]) -> None:
    """A fraction of one dataset and more than all of another, over a rescale: whole and equal."""
    proof = prove(run, _orders(run, urls, _MIXTURE))
    tokens = check_tokens(run, targets=run.spec.targets, most=4)

    assert proof.holds, proof
    assert proof.digest == proof.wanted_digest
    assert 2 * 3 * _EPOCH == proof.samples
    assert (6, 6) == (proof.epochs_whole, proof.epochs_complete)
    assert (4, 0) == (tokens.tokens, tokens.wrong)


def test_other_draws_are_told_apart(run: SwarmResult, urls: Mapping[str, str]) -> None:
    """As many samples of each dataset, drawn in another way, are not what the manifests say."""
    entries = (replace(_MIXTURE.datasets[0], choice="fixed"), _MIXTURE.datasets[1])
    proof = prove(run, _orders(run, urls, replace(_MIXTURE, datasets=entries)))

    assert not proof.holds
    assert proof.altered
    assert proof.epochs_whole < proof.epochs_complete


def test_without_manifests_no_epoch_is_claimed(run: SwarmResult) -> None:
    """Which samples an epoch draws only the manifests say; batches are compared all the same."""
    proof = prove(run, None)

    assert proof.holds
    assert (0, 0) == (proof.epochs_whole, proof.epochs_complete)
