"""A loop whose rank changes between two steps goes on with the rest of the same global batches.

How it could go wrong: a batch of the old share after the change, from what was read ahead or from
a DataLoader's workers; a loop that runs on into the next epoch, where other ranks' loops end; sizes
or weights of the old number of ranks; a change that is half made when an argument is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from headrace.client import (
    Batch,
    BatchLoader,
    Deal,
    NumpyDataset,
    RemoteDataset,
    Sharding,
    Transport,
)
from headrace.errors import BadArgumentError
from support.command import serving
from support.datasets import small_table, write_dataset, write_rows
from support.proxy import proxied

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker:UserWarning")

_SAMPLES, _SIZE, _SEED = 26, 6, 5
_BATCHES = 4


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in a process of its own, so that workers may be forked."""
    url = str(tmp_path_factory.mktemp("reshard") / "d")
    write_dataset(url, small_table(_SAMPLES), shard_samples=[10, 16])
    with serving({"d": url}) as running:
        yield running.address


def _dataset(address: str, **options: Any) -> RemoteDataset[Any]:
    return RemoteDataset(
        address, "d", **{"batch_size": _SIZE, "seed": _SEED, "columns": ["number"], **options}
    )


@pytest.fixture(scope="module")
def order(address: str) -> list[list[int]]:
    """The global batches of three epochs, in order."""
    with _dataset(address, epochs=3) as dataset:
        return [_numbers(batch) for _ in range(3) for batch in dataset]


def _numbers(batch: Any) -> list[int]:
    numbers: list[int] = batch["number"].tolist()
    return numbers


def test_a_loop_goes_on_with_the_new_share(address: str, order: list[list[int]]) -> None:
    """Also with two ranks of a batch of six, then four: shares differ by one at most."""
    with _dataset(address) as dataset:
        reading = iter(dataset)
        found = [_numbers(next(reading))]
        for rank, world_size in ((1, 2), (2, 4), (0, 1)):
            dataset.reshard(rank=rank, world_size=world_size)
            batch = next(reading)
            found.append(_numbers(batch))
            assert len(found[-1]) / _SIZE == pytest.approx(batch.loss_scale / world_size)

    assert [order[0], order[1][3:], order[2][3:4], order[3]] == found


@pytest.mark.parametrize("make", [NumpyDataset, RemoteDataset])
def test_ranks_of_another_mesh_share_the_same_batches(
    make: Any, address: str, order: list[list[int]]
) -> None:
    """Those that differ in a model's axes get the same; a mesh is not forgotten by accident."""
    mesh = {"dp": 3, "tp": 2}
    options = {"batch_size": 2, "seed": _SEED, "columns": ["number"]}
    with make(address, "d", rank=2, world_size=6, mesh=mesh, **options) as dataset:
        reading = iter(dataset)
        assert order[0][2:4] == _numbers(next(reading))
        dataset.reshard(rank=3, world_size=8, mesh={"dp": 2, "tp": 4})
        assert order[1][:3] == _numbers(next(reading))
        dataset.reshard(at_step=1)
        assert order[1][:3] == _numbers(next(reading))
        with pytest.raises(BadArgumentError, match=r"has a mesh.*expected mesh="):
            dataset.reshard(rank=0, world_size=1)
        with pytest.raises(BadArgumentError, match=r"the world size is 4"):
            dataset.reshard(rank=0, world_size=4, mesh=mesh)
        dataset.reshard(rank=3, world_size=4, mesh={"dp": 4})
        assert order[2][4:] == _numbers(next(reading))


def test_a_loop_ends_with_its_epoch(address: str, order: list[list[int]]) -> None:
    """Whatever is changed while its last batch is used."""
    with _dataset(address) as dataset:
        seen = []
        for batch in dataset:
            seen.append(_numbers(batch))
            if batch.step == _BATCHES - 1:
                dataset.reshard(rank=0, world_size=2)
        then = [_numbers(batch) for batch in dataset]

    assert order[:_BATCHES] == seen
    assert [batch[:3] for batch in order[_BATCHES : 2 * _BATCHES]] == then


def test_a_step_that_was_not_committed_comes_again(address: str, order: list[list[int]]) -> None:
    """The state too is that after the last committed step; what is committed does not come."""
    with _dataset(address) as dataset:
        reading = iter(dataset)
        for step in range(2):
            next(reading)
            dataset.committed(step)
        dataset.committed(1)
        next(reading)
        state = dataset.state_dict()
        dataset.reshard(rank=0, world_size=2)
        again = _numbers(next(reading))
        dataset.reshard(at_step=2)
        twice = _numbers(next(reading))
        with pytest.raises(BadArgumentError, match=r"started at step 2"):
            dataset.reshard(at_step=1)
        with pytest.raises(BadArgumentError, match=r"step 3 is committed.*steps 2 to 2"):
            dataset.committed(3)
    with _dataset(address) as other:
        other.load_state_dict(state)
        resumed = _numbers(next(iter(other)))

    assert [order[2][:3], order[2][:3], order[2]] == [again, twice, resumed]


def test_a_newcomer_begins_at_the_step_of_the_others(address: str, order: list[list[int]]) -> None:
    """With no state at all; over ends of epochs, whose last samples are dropped."""
    with NumpyDataset(address, "d", batch_size=_SIZE, seed=_SEED, columns=["number"]) as dataset:
        dataset.reshard(rank=1, world_size=2, at_step=_BATCHES + 1)
        first = next(iter(dataset))["number"].tolist()
        dataset.committed(_BATCHES + 1)
        dataset.reshard(rank=0, world_size=1, at_step=2 * _BATCHES)
        last = next(iter(dataset))["number"].tolist()

    assert [order[_BATCHES + 1][3:], order[2 * _BATCHES]] == [first, last]


def test_nothing_is_dropped_if_nothing_changes(address: str) -> None:
    """The stream stays the one that it was."""
    with _dataset(address) as dataset:
        next(iter(dataset))
        before = dataset._live._running
        dataset.reshard(rank=0, world_size=1, at_step=1)

        assert before is dataset._live._running


@pytest.mark.parametrize("kind", ["grpc", "lz4"])
def test_a_new_share_comes_over_the_same_connection(
    kind: Any, address: str, order: list[list[int]]
) -> None:
    """Of a server that is up; after it is lost, over another one."""
    with proxied(address) as proxy, _dataset(proxy.address, transport=Transport(kind)) as dataset:
        reading = iter(dataset)
        next(reading)
        dataset.reshard(rank=0, world_size=2)
        assert order[1][:3] == _numbers(next(reading))
        assert 1 == proxy.connection_count
        proxy.break_off()
        dataset.reshard(rank=1, world_size=2)
        proxy.mend()
        assert order[2][3:] == _numbers(next(reading))


def test_a_rank_drops_no_more_than_it_may_hold_ready(tmp_path: Path) -> None:
    """Two batches, those under way included; counted where they pass, with what frames them."""
    size, width = 64, 1024
    write_rows(str(tmp_path / "d"), sample_count=64 * size, width=width)
    batch_bytes = 4 * size * width
    transport = Transport("grpc", prefetch_bytes=2 * batch_bytes)
    with (
        serving({"d": str(tmp_path / "d")}) as server,
        proxied(server.address) as proxy,
        RemoteDataset(proxy.address, "d", batch_size=size, transport=transport) as dataset,
    ):
        reading = iter(dataset)
        for _ in range(5):
            time.sleep(0.1)
            next(reading)
        time.sleep(2.0)
        ahead = proxy.passed_bytes - 5 * batch_bytes
        dataset.reshard(rank=0, world_size=2)
        next(reading)

    assert batch_bytes < ahead < 2.1 * batch_bytes


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"rank": 2, "world_size": 2}, r"rank is 2; expected a rank in \[0, 2\)"),
        ({"rank": 1}, r"give both, or neither"),
        ({"rank": 0, "world_size": 7}, r"global_batch_size is 6; expected >= 7"),
        ({"rank": 0, "world_size": 2, "at_step": -1}, r"at_step is -1"),
    ],
)
def test_a_refused_change_changes_nothing(
    told: dict[str, Any], message: str, address: str, order: list[list[int]]
) -> None:
    """The loop goes on as it was."""
    with _dataset(address) as dataset:
        reading = iter(dataset)
        next(reading)
        with pytest.raises(BadArgumentError, match=message):
            dataset.reshard(**told)
        assert order[1] == _numbers(next(reading))


def test_sizes_of_another_number_of_ranks_are_refused(address: str, order: list[list[int]]) -> None:
    """By the server; with as many ranks as before, the loop goes on."""
    sharding = Sharding(deal=Deal(sizes={0: 4, 1: 2}, balance=False), global_batch_size=_SIZE)
    options: dict[str, Any] = {"batch_size": None, "rank": 0, "world_size": 2}
    with _dataset(address, **options, sharding=sharding) as dataset:
        assert order[0][:4] == _numbers(next(iter(dataset)))
        dataset.reshard(rank=0, world_size=3)
        with pytest.raises(BadArgumentError, match=r"sizes"):
            next(iter(dataset))
        dataset.reshard(rank=1, world_size=2)
        assert order[1][4:] == _numbers(next(iter(dataset)))


@pytest.mark.parametrize("options", [{"device": "cpu"}, {}])
def test_functions_and_devices_see_the_new_share(
    options: dict[str, Any], address: str, order: list[list[int]]
) -> None:
    """What a function gets has the weights of the new number of ranks."""

    def weighed(batch: Batch) -> tuple[list[int], float]:
        return _numbers(batch), batch.loss_scale

    with _dataset(address, transform=weighed, **options) as dataset:
        reading = iter(dataset)
        next(reading)
        dataset.reshard(rank=0, world_size=4)
        assert (order[1][:1], pytest.approx(4 / 6)) == next(reading)


def test_a_state_keeps_the_size_of_the_run(address: str, order: list[list[int]]) -> None:
    """Not that of this dataset's batch_size times the new number of ranks."""
    with _dataset(address) as dataset:
        next(iter(dataset))
        state = dataset.state_dict()
        dataset.reshard(rank=1, world_size=2)
        dataset.load_state_dict(state)
        assert order[1][3:] == _numbers(next(iter(dataset)))


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {}])
def test_a_loader_starts_other_workers(
    options: dict[str, Any], address: str, order: list[list[int]]
) -> None:
    """Between two loops; what is left of the loop before is refused."""
    with BatchLoader(_dataset(address), num_workers=2, **options) as loader:
        before = iter(loader)
        assert order[:2] == [_numbers(batch) for batch in islice(before, 2)]
        loader.committed(0)
        loader.reshard(rank=1, world_size=2)
        with pytest.raises(BadArgumentError, match=r"read before reshard.*start another `for`"):
            next(before)
        assert order[1][3:] == _numbers(next(iter(loader)))


def test_kept_workers_of_another_loader_are_refused(address: str) -> None:
    """They have copies of the dataset, of which nobody can tell them."""
    dataset = _dataset(address, sharding=Sharding(), epochs=2)
    loader: Any = DataLoader(
        dataset,
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="forkserver",
    )
    with closing(dataset):
        for batch in loader:
            len(batch)
        dataset.reshard(rank=0, world_size=2)
        with pytest.raises(BadArgumentError, match=r"workers were started before reshard\(\)"):
            next(iter(loader))
