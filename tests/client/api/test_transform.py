"""A function on each batch, ahead of the loop: its results come in order, and states stay exact."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType

import pytest
import torch
from torch.utils.data import DataLoader

from headrace.client import Batch, BatchLoader, NumpyDataset, RemoteDataset, Transport, tf_dataset
from headrace.errors import BadArgumentError, StageFailedError
from support.batch_functions import end_workers, numbers_of
from support.command import serving
from support.datasets import small_table, write_dataset
from support.transports import TRANSPORTS, kind_for, listen_for

SAMPLES, BATCH, COUNT = 107, 8, 13
WAIT_S = 60.0

pytestmark = pytest.mark.filterwarnings(
    # More workers than cores are wanted here: for the order, not for speed.
    "ignore:This DataLoader will create .* worker:UserWarning"
)


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Each way on which batches come."""
    return str(request.param)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[str]:
    """A server in a process of its own: 107 samples, so 13 batches of 8."""
    url = str(tmp_path_factory.mktemp("transform") / "d")
    write_dataset(url, small_table(SAMPLES), shard_samples=[40, 60, 7])
    lane = ["--lane=auto"] if transport == "lane" else []
    with listen_for(transport) as listen, serving({"d": url}, *lane, listen=listen) as running:
        yield running.address


def _dataset(address: str, **options: object) -> RemoteDataset:
    kind = kind_for(address)
    asked = {"transport": Transport(kind)} if kind in {"lane", "lz4"} else {}
    return RemoteDataset(address, "d", **{"batch_size": BATCH, "seed": 3, **asked, **options})  # type: ignore[arg-type] # as given


@pytest.fixture(scope="module")
def epochs(address: str) -> list[list[list[int]]]:
    """Two epochs without a function."""
    with _dataset(address) as dataset:
        return [[numbers_of(batch) for batch in dataset] for _ in range(2)]


def _results(loop: object, count: int | None = None) -> list[object]:
    assert isinstance(loop, RemoteDataset | BatchLoader | NumpyDataset)
    return list(itertools.islice(loop, count))


def test_the_loop_gets_what_the_function_returns(
    address: str, transport: str, epochs: list[list[list[int]]]
) -> None:
    """In the order of the batches, epoch after epoch, and never called by the loop's own thread."""
    callers = set()

    def noting(batch: Batch) -> list[int]:
        callers.add(threading.current_thread().name)
        return numbers_of(batch)

    with _dataset(address, transform=noting) as dataset:
        found = [_results(dataset) for _ in range(2)]
        came_by = dataset.stats().transport

    assert epochs == found
    assert {"headrace-prefetch"} == callers
    assert transport == came_by


def test_none_is_a_result_and_no_end(address: str) -> None:
    """A function that only looks gives the loop as many Nones as there are batches."""
    with _dataset(address, transform=lambda _: None) as dataset:
        assert [None] * COUNT == _results(dataset)


def test_a_batch_that_was_changed_is_a_result_too(
    address: str, epochs: list[list[list[int]]]
) -> None:
    """A column is added and one taken away; the rest of the batch is as it was."""

    def change(batch: Batch) -> Batch:
        batch["double"] = torch.tensor([2 * number for number in numbers_of(batch)])
        del batch["name"]
        return batch

    with _dataset(address, transform=change) as dataset:
        batches = list(dataset)

    assert list(range(COUNT)) == [batch.step for batch in batches]
    doubles = [[2 * number for number in batch] for batch in epochs[0]]
    found = [batch["double"] for batch in batches]
    assert doubles == [value.tolist() for value in found if isinstance(value, torch.Tensor)]
    assert not any("name" in batch for batch in batches)


@pytest.mark.parametrize("handed_over", [0, 1, 5, COUNT])
def test_a_state_is_that_of_the_last_result_handed_over(
    address: str, epochs: list[list[list[int]]], handed_over: int
) -> None:
    """Whatever the function returns and however far it has run ahead; with it or without it."""
    with _dataset(address, transform=lambda batch: str(numbers_of(batch))) as dataset:
        _results(dataset, handed_over)
        state = dataset.state_dict()
    with _dataset(address) as plain, _dataset(address, transform=numbers_of) as resumed:
        plain.load_state_dict(state)
        resumed.load_state_dict(state)

        rest = [numbers_of(batch) for batch in plain]
        transformed = _results(resumed)

    wanted = epochs[0][handed_over:] or epochs[1]
    assert wanted == rest == transformed


@pytest.mark.parametrize("kind", [ValueError, StopIteration, GeneratorExit, SystemExit, KeyError])
def test_an_error_comes_after_all_results_before_it(
    address: str, epochs: list[list[list[int]]], kind: type[BaseException]
) -> None:
    """It names the step, has the original as its cause, and the next `for` begins there."""
    is_broken = True

    def fail(batch: Batch) -> list[int]:
        if batch.step == 4 and is_broken:
            raise kind("no")
        return numbers_of(batch)

    found: list[object] = []
    with _dataset(address, transform=fail) as dataset:
        with pytest.raises(StageFailedError, match=r"step 4 \(epoch 0, position 32\)") as caught:
            found += dataset
        state = dataset.state_dict()
        is_broken = False
        found += dataset
    with _dataset(address) as resumed:
        resumed.load_state_dict(state)
        rest = [numbers_of(batch) for batch in resumed]

    assert type(caught.value.__cause__) is kind
    assert "4" == caught.value.metadata["step"]
    assert epochs[0] == found
    assert epochs[0][4:] == rest


def test_a_loop_may_end_while_the_function_runs(
    address: str, epochs: list[list[list[int]]]
) -> None:
    """The batch that it works on was handed over to nobody, and comes again."""
    began, may_end = threading.Event(), threading.Event()

    def slow(batch: Batch) -> list[int]:
        if batch.step == 1:
            began.set()
            assert may_end.wait(WAIT_S)
        return numbers_of(batch)

    with _dataset(address, transform=slow) as dataset:
        first = next(iter(dataset))
        assert began.wait(WAIT_S)
        closing = threading.Thread(target=dataset.close)
        closing.start()
        may_end.set()
        closing.join(WAIT_S)
        rest = _results(dataset)

    assert epochs[0] == [first, *rest]


def test_an_interrupt_while_the_function_runs_loses_nothing(
    address: str, epochs: list[list[list[int]]]
) -> None:
    """Ctrl-C ends the loop when the function has returned; its batch comes again."""
    pause, sent = threading.Event(), threading.Event()

    def interrupt_once(batch: Batch) -> list[int]:
        if batch.step == 2 and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)
            pause.wait(0.05)
        return numbers_of(batch)

    found: list[object] = []
    with _dataset(address, transform=interrupt_once) as dataset:
        with pytest.raises(KeyboardInterrupt):
            found.extend(dataset)
        found.extend(dataset)

    assert epochs[0] == found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_results_of_its_workers(
    address: str, epochs: list[list[list[int]]], workers: int
) -> None:
    """In order, with the state of the last one that the loop got, for any number of workers."""
    loader = BatchLoader(_dataset(address, transform=numbers_of), num_workers=workers)
    before = _results(loader, 5)
    state = loader.state_dict()
    after = _results(loader)
    with _dataset(address, transform=numbers_of) as resumed:
        resumed.load_state_dict(state)
        rest = _results(resumed)

    assert epochs[0] == before + after
    assert epochs[0][5:] == rest


def test_arrays_stay_arrays_in_a_loader(address: str) -> None:
    """Torch's own loader would make tensors of them."""
    loader = BatchLoader(_dataset(address, transform=Batch.to_numpy), num_workers=1)

    arrays: object = next(iter(loader))

    assert isinstance(arrays, dict)
    assert not any(isinstance(array, torch.Tensor) for array in arrays.values())


def test_other_loaders_with_workers_are_refused(address: str) -> None:
    """They do not say which results the loop got, so a state would be wrong."""
    loader = DataLoader(
        _dataset(address, transform=numbers_of),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="forkserver",
    )

    batches = iter(loader)
    with pytest.raises(BadArgumentError, match=r"expected headrace\.client\.BatchLoader"):
        next(batches)
    end_workers()


def test_a_function_of_a_notebook_cell_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other process could import it; a script's own functions are found by its file."""
    cells = ModuleType("__main__")
    exec("def to_pair(batch): return batch", cells.__dict__)  # noqa: S102 - as a cell is run
    monkeypatch.setitem(sys.modules, "__main__", cells)

    for given in (cells.to_pair, partial(cells.to_pair)):
        dataset = RemoteDataset("127.0.0.1:1", "d", batch_size=4, transform=given)
        with pytest.raises(BadArgumentError, match="%%writefile transforms"):
            BatchLoader(dataset, num_workers=1)
        plain = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        with pytest.raises(BadArgumentError, match="%%writefile transforms"):
            iter(plain)
        BatchLoader(dataset, num_workers=0)


def test_a_function_that_cannot_travel_is_refused_at_once() -> None:
    """Before a worker is started."""
    dataset = RemoteDataset("localhost:1", "d", batch_size=8, transform=lambda batch: batch)

    with pytest.raises(BadArgumentError, match="cannot be sent to a worker"):
        BatchLoader(dataset, num_workers=1)


def test_for_a_device_the_loop_calls_it(address: str, epochs: list[list[list[int]]]) -> None:
    """So that what it starts there is ordered with what the loop starts."""
    callers = set()

    def noting(batch: Batch) -> list[int]:
        callers.add(threading.current_thread())
        if batch.step == 3 and len(callers) == 1:
            callers.add(threading.Thread())
            raise ValueError("once")
        return numbers_of(batch)

    found: list[object] = []
    with _dataset(address, transform=noting, device="cpu") as dataset:
        with pytest.raises(StageFailedError, match="step 3"):
            found += dataset
        found += dataset

    assert epochs[0] == found
    assert threading.current_thread() in callers
    assert 2 == len(callers)


def test_arrays_pass_a_function_too(address: str, epochs: list[list[list[int]]]) -> None:
    """`NumpyDataset` calls it with its dictionaries, and its token stays exact."""

    def listed(arrays: dict[str, Sequence[int]]) -> list[int]:
        return [int(number) for number in arrays["number"]]

    transform: Callable[..., object] = listed
    dataset = NumpyDataset(address, "d", batch_size=BATCH, seed=3, transform=transform)
    before = _results(dataset, 5)
    token = dataset.token
    resumed = NumpyDataset(address, "d", batch_size=BATCH, seed=3, transform=transform).resume(
        token
    )

    assert epochs[0] == before + _results(resumed)
    with pytest.raises(BadArgumentError, match=r"views\(\)"):
        dataset.views()
    with pytest.raises(BadArgumentError, match="tf_dataset"):
        tf_dataset(dataset)  # type: ignore[arg-type] # the mistake


@pytest.mark.parametrize("kind", [RemoteDataset, NumpyDataset])
def test_what_cannot_be_called_is_refused(kind: type[RemoteDataset | NumpyDataset]) -> None:
    """With what was found and what was wanted."""
    with pytest.raises(BadArgumentError, match="transform is 'flip', of type str"):
        kind("localhost:1", "d", batch_size=8, transform="flip")  # type: ignore[arg-type] # the claim


def test_waits_for_the_function_have_a_name(address: str) -> None:
    """A loop that is starved by it sees so in the statistics."""
    pause = threading.Event()
    with _dataset(
        address, transform=lambda _: pause.wait(0.02), transport=Transport(prefetch_bytes=0)
    ) as dataset:
        _results(dataset)
        waited = dataset.stats().waited_on

    assert waited.transform > 0
