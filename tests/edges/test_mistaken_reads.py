"""What a dataset is asked for by mistake is refused with what to do, or right."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from headrace.client import (
    Mixture,
    MixtureEntry,
    NumpyDataset,
    RemoteDataset,
    Selection,
)
from headrace.errors import BadArgumentError, NotADatasetError, TokenSpecChangedError
from headrace.storage import open_dataset
from support.datasets import write_dataset
from support.running import server_of
from support.threads import at_once

SAMPLES = {"small": 100, "large": 400}
End = Literal["drop_last", "uneven", "pad"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of two datasets."""
    folder = tmp_path_factory.mktemp("mistakes")
    urls: dict[str, Any] = {}
    for name, count in SAMPLES.items():
        urls[name] = str(folder / name)
        write_dataset(urls[name], pa.table({"x": np.arange(count)}), shard_samples=[count])
    with server_of(urls) as server:
        yield server.address


def _values(dataset: Iterable[Any]) -> list[int]:
    return [number for batch in dataset for number in batch["x"].tolist()]


@pytest.mark.parametrize("skips", [[100], [3, 100, 250], list(range(99, 103))])
@pytest.mark.parametrize("call", [_values, len, RemoteDataset.state_dict])
def test_skips_that_the_dataset_does_not_have_are_refused(
    address: str, skips: list[int], call: Any
) -> None:
    """They are of another dataset; the message names the greatest, and the ids that there are."""
    dataset = RemoteDataset(address, Selection("small", skips=skips), batch_size=4, epochs=1)
    with pytest.raises(BadArgumentError, match=rf"sample id {skips[-1]}.*'small'.*\[0, 100\)"):
        call(dataset)


@pytest.mark.parametrize("call", [_values, len, RemoteDataset.state_dict])
def test_skips_of_a_mixture_never_mean_the_next_dataset(address: str, call: Any) -> None:
    """Id 100 of the first would be id 0 of the second."""
    entries = (MixtureEntry("small", skips=[100]), MixtureEntry("large"))
    dataset = RemoteDataset(address, Mixture(entries), batch_size=4, epochs=1)
    with pytest.raises(BadArgumentError, match="'small' does not have"):
        call(dataset)


def test_the_last_sample_can_be_skipped(address: str) -> None:
    """The greatest id is within."""
    dataset = RemoteDataset(address, Selection("small", skips=[99]), batch_size=4, epochs=1)

    assert 99 not in _values(dataset)
    dataset.close()


@pytest.mark.parametrize("size", [{"batch_size": 101}, {"batch_size": 26, "world_size": 4}])
@pytest.mark.parametrize("epochs", [1, 2, None])
def test_a_batch_above_the_dataset_is_refused(
    address: str, size: dict[str, int], epochs: int | None
) -> None:
    """Where the last batch is left out there would be none, without a word."""
    for kind in (RemoteDataset, NumpyDataset):
        given: dict[str, Any] = {"rank": 0, "world_size": 1, **size, "epochs": epochs}
        dataset = kind(address, "small", **given)
        with pytest.raises(BadArgumentError, match=r"100 samples has no batch .* end='uneven'"):
            next(iter(dataset))


@pytest.mark.parametrize("end", ["uneven", "pad"])
def test_a_batch_above_the_dataset_is_right_where_it_is_kept(address: str, end: End) -> None:
    """All samples are one batch."""
    dataset = RemoteDataset(address, "small", batch_size=101, epochs=1, end=end)

    assert set(range(100)) == set(_values(dataset))
    dataset.close()


def test_a_state_of_another_end_is_refused(address: str) -> None:
    """It would change the samples of each epoch; the message says how to do it on purpose."""
    dataset = RemoteDataset(address, "small", batch_size=32, end="uneven")
    with closing(dataset):
        next(iter(dataset))
        state = dataset.state_dict()
        token = dataset._progress.place.token
    for end in ("drop_last", "pad"):
        other = RemoteDataset(address, "small", batch_size=32, end=end)
        with pytest.raises(
            TokenSpecChangedError,
            match=rf"end: '{end}' requested, but the state has 'uneven'.*resume\(",
        ):
            other.load_state_dict(state)
    same = RemoteDataset(address, "small", batch_size=32, end="uneven")
    same.load_state_dict(state)
    changed = RemoteDataset(address, "small", batch_size=32).resume(token)
    older = RemoteDataset(address, "small", batch_size=32)
    assert isinstance(state["spec"], dict)
    older.load_state_dict({**state, "spec": {k: v for k, v in state["spec"].items() if k != "end"}})

    assert [68, 64, 64] == [len(_values(each)) for each in (same, changed, older)]
    for each in (same, changed, older):
        each.close()


def _iterate(
    dataset: Iterable[Any], line: threading.Barrier, got: list[int], told: list[BaseException]
) -> None:
    line.wait()
    try:
        for batch in dataset:
            got.extend(batch["x"].tolist())
    except BadArgumentError as error:
        told.append(error)


@pytest.mark.parametrize("kind", [RemoteDataset, NumpyDataset])
def test_threads_never_get_a_batch_twice(address: str, kind: Any) -> None:
    """Of three that iterate one dataset all but one are told; what they got is each batch once."""
    for _ in range(8):
        dataset = kind(address, "large", batch_size=4, epochs=1)
        got, told, line = list[int](), list[BaseException](), threading.Barrier(3)
        at_once(lambda call: _iterate(*call), [(dataset, line, got, told)] * 3)
        # One that came when all were done had nothing to be told.
        rest = _values(dataset)
        dataset.close()

        assert len(told) <= 2 + len(rest)
        assert all("a dataset serves one loop at a time" in str(error) for error in told)
        assert sorted(got + rest) == list(range(400))


@pytest.mark.parametrize("kind", [RemoteDataset, NumpyDataset])
def test_a_loop_that_another_overtook_is_told(address: str, kind: Any) -> None:
    """Two iterators of one dataset do not share its batches; the newer one has them."""
    dataset = kind(address, "small", batch_size=10, epochs=1)
    older, newer = iter(dataset), iter(dataset)
    first, second = next(older)["x"], next(newer)["x"]
    with pytest.raises(BadArgumentError, match="another loop over this dataset started"):
        next(older)
    rest = [batch["x"] for batch in newer]

    assert set(range(100)) == {int(each) for x in (first, second, *rest) for each in x}
    assert 10 == len([first, second, *rest])


def test_a_move_while_another_thread_waits_is_refused(address: str) -> None:
    """Else its loop would go on from a place that nobody can tell."""
    dataset = RemoteDataset(address, "small", batch_size=10)
    dataset._turns.take()
    refused: list[BaseException] = []

    def move() -> None:
        try:
            dataset.seek(3)
        except BadArgumentError as error:
            refused.append(error)

    mover = threading.Thread(target=move)
    mover.start()
    mover.join()
    dataset._turns.end()
    dataset.seek(2)

    assert 1 == len(refused)
    assert 2 == next(iter(dataset)).epoch
    dataset.close()


def test_a_move_inside_a_loop_moves_the_loop(address: str) -> None:
    """Forth or back, it yields the rest of the epoch that it was moved to, and ends."""
    dataset = RemoteDataset(address, "small", batch_size=25)
    dataset.seek(5)
    seen = []
    for batch in dataset:
        seen.append((batch.epoch, batch.position))
        if len(seen) == 1:
            dataset.seek(2, 50)

    assert [(5, 0), (2, 50), (2, 75)] == seen
    dataset.close()


def test_a_folder_of_datasets_names_them(tmp_path: Path) -> None:
    """As splits are converted: what is meant lies one folder further."""
    for split in ("train", "val"):
        write_dataset(str(tmp_path / split), pa.table({"x": np.arange(3)}), shard_samples=[3])

    with pytest.raises(NotADatasetError, match=r"in it are datasets: train, val; add the name"):
        open_dataset(str(tmp_path))
