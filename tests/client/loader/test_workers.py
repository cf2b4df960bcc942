"""Batches read in the workers of a DataLoader are those that no workers would give."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import (  # type: ignore[import-untyped] # it has no py.typed
    StatefulDataLoader,
)

from headrace.client import Batch, BatchLoader, Order, RemoteDataset, Selection
from headrace.errors import BadArgumentError, TokenMalformedError, TokenSpecChangedError
from support.command import serving
from support.datasets import small_table, write_dataset
from support.private import is_over, wait_until

pytestmark = [
    # What torchdata 0.11 calls at import of its loader.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    # More workers than cores are wanted here: for the order, not for speed.
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker:UserWarning"),
]

Seen = tuple[int, int, int, tuple[int, ...], bytes]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in a process of its own: 107 samples, so 13 batches of 8."""
    url = str(tmp_path_factory.mktemp("workers") / "d")
    write_dataset(url, small_table(107), shard_samples=[40, 60, 7])
    with serving({"d": url}) as running:
        yield running.address


def _loader(dataset: RemoteDataset, workers: int, **options: Any) -> DataLoader[Batch]:
    """Torch's own loader; its workers must not be forked from a process that has used gRPC."""
    # As BatchLoader does: workers start in no time once the server of forks has loaded torch.
    multiprocessing.set_forkserver_preload([RemoteDataset.__module__])
    context = options.pop("context", "forkserver")
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
        **options,
    )


def _torchdata(dataset: RemoteDataset) -> Any:
    return StatefulDataLoader(
        dataset, batch_size=None, num_workers=3, multiprocessing_context="forkserver"
    )


def _dataset(address: str, name: str | Selection = "d", **options: Any) -> RemoteDataset:
    order = Order(with_ids=True)
    return RemoteDataset(address, name, **{"batch_size": 8, "order": order, **options})


def _seen(batches: Iterable[Batch]) -> list[Seen]:
    return [_one(batch) for batch in batches]


def _one(batch: Batch) -> Seen:
    assert batch.sample_ids is not None
    numbers = batch["number"]
    assert isinstance(numbers, torch.Tensor)
    assert numbers.tolist() == batch.sample_ids.tolist()
    ids = tuple(batch.sample_ids.tolist())
    return batch.epoch, batch.step, batch.position, ids, batch.token


@pytest.fixture(scope="module")
def epochs(address: str) -> list[list[Seen]]:
    """Three epochs, read with no workers."""
    dataset = _dataset(address)
    found = [_seen(dataset) for _ in range(3)]
    dataset.close()
    return found


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_give_the_epochs_that_no_workers_give(
    address: str, epochs: list[list[Seen]], workers: int, *, persistent: bool
) -> None:
    """Also where some worker has one batch less, or none at all."""
    loader = _loader(_dataset(address), workers, persistent_workers=persistent)

    assert epochs == [_seen(loader) for _ in range(3)]


def test_spawned_workers_do_so_too(address: str, epochs: list[list[Seen]]) -> None:
    """They get the dataset by pickling."""
    loader = _loader(_dataset(address), 2, context="spawn")

    assert epochs[:2] == [_seen(loader) for _ in range(2)]


def test_a_closed_loader_keeps_no_worker_and_continues(
    address: str, epochs: list[list[Seen]]
) -> None:
    """Leaving it ends the workers that it keeps; another ``for`` starts new ones."""
    with BatchLoader(_dataset(address), num_workers=2, persistent_workers=True) as loader:
        found = _seen(itertools.islice(loader, 5))
        workers = [child.pid for child in multiprocessing.active_children()]
    assert 2 <= len(workers)
    assert wait_until(lambda: all(pid is not None and is_over(pid) for pid in workers))

    assert epochs[0] == found + _seen(loader)
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("handed_over", [4, 12, 13])
def test_after_a_break_the_next_for_yields_the_rest_of_workers_too(
    address: str, epochs: list[list[Seen]], handed_over: int, *, persistent: bool
) -> None:
    """Whatever the workers had read ahead."""
    loader = _loader(_dataset(address), 3, persistent_workers=persistent, prefetch_factor=4)
    before = _seen(itertools.islice(loader, handed_over))

    after = _seen(loader)

    assert epochs[0][:handed_over] == before
    assert (epochs[0][handed_over:] or epochs[1]) == after


@pytest.mark.parametrize("persistent", [False, True])
def test_a_second_loop_ends_the_first_with_workers_too(
    address: str, epochs: list[list[Seen]], *, persistent: bool
) -> None:
    """Each batch goes to one loop, and the second one lacks none."""
    loader = BatchLoader(_dataset(address), num_workers=2, persistent_workers=persistent)
    first, second = iter(loader), iter(loader)
    found = [_one(next(first)), _one(next(second))]

    with pytest.raises(BadArgumentError, match="another loop"):
        next(first)

    assert epochs[0] == found + _seen(second)
    loader.close()


def test_a_dataset_that_was_read_here_goes_on_in_workers(
    address: str, epochs: list[list[Seen]]
) -> None:
    """Its channel and its threads stay behind; the place comes along, there and back."""
    dataset = _dataset(address)
    first = _seen(itertools.islice(dataset, 2))
    second = _seen(itertools.islice(_loader(dataset, 2), 3))
    rest = _seen(dataset)
    dataset.close()

    assert epochs[0] == first + second + rest


def test_seek_moves_persistent_workers(address: str, epochs: list[list[Seen]]) -> None:
    """They live on, and begin where the dataset was moved to."""
    loader = BatchLoader(_dataset(address), num_workers=2, persistent_workers=True)
    dataset = loader.dataset
    assert isinstance(dataset, RemoteDataset)
    _seen(itertools.islice(loader, 5))
    dataset.seek(2, 16)

    found = [(batch.epoch, batch.position) for batch in loader]

    assert [(epoch, position) for epoch, _, position, _, _ in epochs[2][2:]] == found


@pytest.mark.parametrize("where", [None, "number < 50"])
@pytest.mark.parametrize(("position", "before"), [(16, 3), (0, 13)])
def test_kept_workers_read_what_a_second_state_says(
    address: str, position: int, before: int, where: str | None
) -> None:
    """Its batch size and its filter, which the dataset lacks, also if it continues the first."""
    states, expected = [], []
    for epoch, options in enumerate([{}, {"batch_size": 4}]):
        run = _dataset(address, Selection("d", where=where if epoch else None), **options)
        run.seek(epoch, position)
        states.append(run.state_dict())
        expected.append(_seen(run))
        run.close()
    dataset = _dataset(address, batch_size=None)
    dataset.load_state_dict(states[0])
    loader = _loader(dataset, 2, persistent_workers=True)
    first = _seen(itertools.islice(loader, before))
    dataset.load_state_dict(states[1])

    assert expected[0][:before] == first
    if where is None:
        assert expected[1] == _seen(loader)
    else:
        with pytest.raises(TokenSpecChangedError, match="where"):
            next(iter(loader))


def test_restart_gives_workers_the_same_epoch_each_time(
    address: str, epochs: list[list[Seen]]
) -> None:
    """As it does without them, also after the dataset was moved."""
    dataset = _dataset(address, epochs="same")
    loader = BatchLoader(dataset, num_workers=2, persistent_workers=True)
    next(iter(loader))

    found = [[seen[3] for seen in _seen(loader)] for _ in range(2)]
    dataset.seek(2)
    later = [[seen[3] for seen in _seen(loader)] for _ in range(2)]

    assert [[seen[3] for seen in epochs[0]]] * 2 == found
    assert [[seen[3] for seen in epochs[2]]] * 2 == later


def test_a_run_with_workers_ends_after_its_epochs(address: str, epochs: list[list[Seen]]) -> None:
    """With epochs=2 the third loop yields nothing."""
    loader = BatchLoader(_dataset(address, epochs=2), num_workers=2)

    assert [*epochs[:2], []] == [_seen(loader) for _ in range(3)]


@pytest.mark.parametrize("end", ["uneven", "pad"])
def test_the_last_batch_is_the_same_with_workers(address: str, end: str) -> None:
    """The 107 samples leave three for it."""
    alone = _dataset(address, end=end)
    expected = [(seen, batch.is_pad.tolist()) for batch in alone for seen in _seen([batch])]
    alone.close()

    loader = BatchLoader(_dataset(address, end=end), num_workers=3)

    assert expected == [(_one(batch), batch.is_pad.tolist()) for batch in loader]
    assert 14 == len(expected)


def test_an_empty_rest_of_an_epoch_does_not_come_for_ever(
    address: str, epochs: list[list[Seen]]
) -> None:
    """Three samples fill no batch: the next for yields the next epoch."""
    dataset = _dataset(address)
    dataset.seek(0, 104)
    loader = BatchLoader(dataset, num_workers=2)

    assert [seen[3] for seen in epochs[1]] == [seen[3] for seen in _seen(loader)]


def test_a_loop_that_never_looks_goes_on_all_the_same(
    address: str, epochs: list[list[Seen]]
) -> None:
    """BatchLoader itself takes note of each batch."""
    loader = BatchLoader(_dataset(address), num_workers=2)
    for _ in itertools.islice(loader, 5):
        pass

    assert epochs[0][5:] == _seen(loader)


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 0), (0, 3)])
@pytest.mark.parametrize("handed_over", [0, 7, 13])
def test_a_state_is_loaded_with_any_number_of_workers(
    address: str, epochs: list[list[Seen]], before: int, after: int, handed_over: int
) -> None:
    """It is the token of the last batch handed over, not of one that a worker has read ahead."""
    saved = BatchLoader(_dataset(address), num_workers=before)
    assert epochs[0][:handed_over] == _seen(itertools.islice(saved, handed_over))
    state = saved.state_dict()
    resumed = BatchLoader(_dataset(address), num_workers=after)
    resumed.load_state_dict(state)

    found = [_seen(resumed) for _ in range(2)]

    rest = epochs[0][handed_over:]
    assert ([rest, epochs[1]] if rest else epochs[1:]) == found


@pytest.mark.parametrize("handed_over", [2, 12, 13])
def test_torchdatas_loader_resumes_with_the_same_number_of_workers(
    address: str, epochs: list[list[Seen]], handed_over: int
) -> None:
    """Its state holds that of each worker; also where some have ended, or all."""
    saved: Any = _torchdata(_dataset(address))
    batches = iter(saved)
    assert epochs[0][:handed_over] == _seen(itertools.islice(batches, handed_over))
    state = saved.state_dict()
    del batches, saved
    resumed: Any = _torchdata(_dataset(address))
    resumed.load_state_dict(state)

    found = [_seen(resumed) for _ in range(2)]

    assert [epochs[0][handed_over:], epochs[1]] == found


def test_torchdatas_loader_goes_on_after_a_whole_epoch(
    address: str, epochs: list[list[Seen]]
) -> None:
    """It then starts other workers than those that it gave its state."""
    saved: Any = _torchdata(_dataset(address))
    assert epochs[0] == _seen(saved)
    resumed: Any = _torchdata(_dataset(address))
    resumed.load_state_dict(saved.state_dict())

    assert epochs[1:] == [_seen(resumed) for _ in range(2)]


def test_the_state_of_one_worker_is_none_of_a_rank(address: str) -> None:
    """It says only where that worker stands."""
    dataset = _dataset(address)
    state = {**dataset.state_dict(), "worker": {"count": 2, "offset": 1, "ended": False}}

    with pytest.raises(TokenMalformedError, match="one DataLoader worker"):
        dataset.load_state_dict(state)


def test_a_batch_travels_with_what_was_set_in_it(address: str) -> None:
    """As one piece of memory, and what was added or replaced beside it."""
    dataset = _dataset(address)
    batch = next(iter(dataset))
    dataset.close()
    numbers = batch["number"]
    assert isinstance(numbers, torch.Tensor)
    batch["twice"] = numbers * 2
    del batch["ratio"]

    copy = pickle.loads(pickle.dumps(batch))

    assert list(batch) == list(copy)
    assert _one(batch) == _one(copy)
    assert list(batch["name"]) == list(copy["name"])
    assert torch.equal(batch["twice"], copy["twice"])


def test_a_device_inside_a_worker_is_refused(address: str) -> None:
    """Batches travel between processes as host memory; the message says what to do."""
    loader = BatchLoader(_dataset(address, device="cpu"), num_workers=1)

    with pytest.raises(BadArgumentError, match="device=None"):
        next(iter(loader))


FORKING = """
import sys
from torch.utils.data import DataLoader
from headrace.client import RemoteDataset
from headrace.errors import BadArgumentError

dataset = RemoteDataset(sys.argv[1], "d", batch_size=8)
loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
print([[batch.position for batch in loader] for _ in range(2)])
print(len(dataset))
try:
    print(list(loader))
except BadArgumentError as error:
    print("forkserver" in str(error))
"""


def test_workers_are_forked_before_a_server_was_asked_or_not_at_all(address: str) -> None:
    """Forked later, gRPC would hang in some of them, so they refuse."""
    ended = subprocess.run(
        [sys.executable, "-c", FORKING, address],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )

    whole = list(range(0, 104, 8))
    assert [str([whole] * 2), "13", "True"] == ended.stdout.splitlines()


PREPARING = """
import time
from pathlib import Path
from headrace.client import BatchLoader, RemoteDataset

BatchLoader(RemoteDataset("127.0.0.1:1", "d", batch_size=8), num_workers=2, start_method={method!r})
children = Path("/proc/thread-self/children").read_text().split()
own, until = Path("/proc/self/cmdline").read_bytes(), time.monotonic() + 60
lines = lambda: [Path(f"/proc/{{each}}/cmdline").read_bytes() for each in children]
# A child has its parent's command line, and then for a moment an empty one, until it runs what it
# was started for.
while {{own, b""}} & {{*lines()}} and time.monotonic() < until:
    time.sleep(0.01)
print(sum(b"forkserver" in line for line in lines()))
"""


@pytest.mark.parametrize(("method", "count"), [("forkserver", 1), ("fork", 0), ("spawn", 0)])
def test_what_workers_are_forked_from_starts_before_the_first_loop(method: str, count: int) -> None:
    """It imports torch while the job goes on; other methods have no such process."""
    ended = subprocess.run(
        [sys.executable, "-c", PREPARING.format(method=method)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )

    assert f"{count}\n" == ended.stdout
