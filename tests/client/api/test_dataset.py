"""What a training loop sees of a RemoteDataset."""

import copy
import gc
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import torch
from torch.utils.data import DataLoader

from headrace.client import Batch, Deadlines, NumpyDataset, RemoteDataset, Sharding, Transport
from headrace.errors import (
    BadArgumentError,
    ServerUnreachableError,
    ShardCorruptError,
    TokenSpecChangedError,
)
from headrace.order import decode_token
from headrace.v1 import shard_service_pb2 as pb
from support.scripted_server import ScriptedService, fail, scripted_server
from support.wire import epoch_messages, start_message, token_at


def _endless(
    request: pb.ReadBatchesRequest, context: grpc.ServicerContext
) -> Iterator[pb.ReadBatchesResponse]:
    epoch, position = request.epoch_start.epoch, request.epoch_start.position
    if request.WhichOneof("start") == "resume_token":
        token = decode_token(request.resume_token)
        epoch, position = token.epoch, token.position
    last = epoch + request.epoch_count if request.epoch_count else 1000
    yield start_message()
    for number in range(epoch, last):
        if not context.is_active():
            return
        yield from epoch_messages(number, position if number == epoch else 0)


@pytest.fixture
def server() -> Iterator[ScriptedService]:
    """A server with 12 samples an epoch, in batches of 4."""
    with scripted_server(_endless) as running:
        yield running


def _first(batch: Batch) -> tuple[int, int]:
    values = batch["x"]
    assert isinstance(values, torch.Tensor)
    return batch.epoch, int(values[0])


WHOLE_EPOCHS = [[(epoch, 1000 * epoch + start) for start in (0, 4, 8)] for epoch in range(3)]


def test_each_for_yields_the_next_epoch(server: ScriptedService) -> None:
    """Three loops give three epochs, over one stream."""
    dataset = RemoteDataset(server.address, "d", batch_size=4)

    found = [[_first(batch) for batch in dataset] for _ in range(3)]
    dataset.close()

    assert WHOLE_EPOCHS == found
    assert 1 == len(server.requests)


@pytest.mark.parametrize("handed_over", [1, 2, 3])
def test_after_a_break_the_next_for_yields_the_rest(
    server: ScriptedService, handed_over: int
) -> None:
    """Nothing is lost or repeated by a break, also one at the last batch of an epoch."""
    dataset = RemoteDataset(server.address, "d", batch_size=4)
    before = [_first(batch) for batch in itertools.islice(dataset, handed_over)]

    after = [_first(batch) for batch in dataset]
    dataset.close()

    whole = WHOLE_EPOCHS[0] + WHOLE_EPOCHS[1]
    assert whole[:handed_over] == before
    expected = whole[handed_over:3] if handed_over < 3 else whole[3:]
    assert expected == after


def test_a_state_resumes_after_the_last_batch_handed_over(server: ScriptedService) -> None:
    """What was prefetched beyond it is read again by the resumed run."""
    dataset = RemoteDataset(server.address, "d", batch_size=4)
    list(itertools.islice(dataset, 2))
    state = dataset.state_dict()
    dataset.close()
    resumed = RemoteDataset(server.address, "d", batch_size=2, rank=1, world_size=2)
    resumed.load_state_dict(state)

    found = [_first(batch) for batch in resumed]
    resumed.close()

    assert [(0, 8)] == found
    assert (1, 2) == (server.requests[-1].rank, server.requests[-1].world_size)


def test_a_state_leaves_nothing_to_the_next_one(server: ScriptedService) -> None:
    """A dataset that has loaded one takes or refuses another as a new dataset does."""
    small, large = (
        RemoteDataset(server.address, "d", batch_size=size).state_dict() for size in (4, 8)
    )
    free, sized = (RemoteDataset(server.address, "d", batch_size=size) for size in (None, 4))
    free.load_state_dict(small)
    sized.load_state_dict(small)

    free.load_state_dict(large)
    next(iter(free))
    free.close()

    assert 8 == server.requests[-1].global_batch_size
    with pytest.raises(TokenSpecChangedError, match="the state has 8"):
        sized.load_state_dict(large)


def test_a_state_from_before_the_first_batch_is_the_beginning(server: ScriptedService) -> None:
    """It holds the dataset's fingerprint, so it is bound to its version."""
    state = RemoteDataset(server.address, "d", batch_size=4).state_dict()
    resumed = RemoteDataset(server.address, "d", batch_size=4)
    resumed.load_state_dict(state)

    assert WHOLE_EPOCHS[0] == [_first(batch) for batch in resumed]
    resumed.close()


def test_a_token_of_a_batch_is_a_state_too(server: ScriptedService) -> None:
    """`token=` begins after the batch that carried it."""
    dataset = RemoteDataset(server.address, "d", batch_size=4)
    batch = next(iter(dataset))
    dataset.close()
    resumed = RemoteDataset(server.address, "d").resume(batch.token)

    assert WHOLE_EPOCHS[0][1:] == [_first(later) for later in resumed]
    resumed.close()


def test_seek_moves_to_any_place(server: ScriptedService) -> None:
    """The next for begins where seek said."""
    dataset = RemoteDataset(server.address, "d", batch_size=4)
    next(iter(dataset))
    dataset.seek(2, 4)

    assert WHOLE_EPOCHS[2][1:] == [_first(batch) for batch in dataset]
    dataset.close()


def _refuse_another_order(
    request: pb.ReadBatchesRequest, context: grpc.ServicerContext
) -> Iterator[pb.ReadBatchesResponse]:
    """Do as a real server does: a token and an order that disagree are refused."""
    if request.WhichOneof("start") == "resume_token":
        unit = decode_token(request.resume_token).spec.unit
        if unit != request.order.unit:
            fail(context, grpc.StatusCode.FAILED_PRECONDITION, "TOKEN_SPEC_CHANGED")
    yield from _endless(request, context)


def test_a_stream_begun_anew_keeps_the_order_of_the_run() -> None:
    """After close, seek, restart or a change of the global batch the unit is the token's."""
    with scripted_server(_refuse_another_order) as server:
        dataset = RemoteDataset(server.address, "d", batch_size=4)
        next(iter(dataset))
        dataset.close()
        assert WHOLE_EPOCHS[0][1:] == [_first(batch) for batch in dataset]
        dataset.seek(2)
        assert WHOLE_EPOCHS[2] == [_first(batch) for batch in dataset]
        state = dataset.state_dict()
        dataset.close()

        resumed = RemoteDataset(server.address, "d", sharding=Sharding(global_batch_size=6))
        resumed.load_state_dict(state)
        next(iter(resumed))
        resumed.close()

    assert [4, 4, 4, 4] == [request.order.unit for request in server.requests]


def test_restart_begins_the_same_epoch_each_time(server: ScriptedService) -> None:
    """A validation set is the same in every round, also after a break."""
    dataset = RemoteDataset(server.address, "d", batch_size=4, epochs="same")
    next(iter(dataset))

    found = [[_first(batch) for batch in dataset] for _ in range(2)]
    dataset.close()

    assert [WHOLE_EPOCHS[0]] * 2 == found


def test_a_run_ends_after_its_epochs(server: ScriptedService) -> None:
    """With epochs=2 the third loop yields nothing."""
    dataset = RemoteDataset(server.address, "d", batch_size=4, epochs=2)

    found = [[_first(batch) for batch in dataset] for _ in range(3)]
    dataset.close()

    assert [*WHOLE_EPOCHS[:2], []] == found


def test_len_counts_the_batches_of_an_epoch(server: ScriptedService) -> None:
    """Twelve samples are three batches of four, or two of five and one of two."""
    assert 3 == len(RemoteDataset(server.address, "d", batch_size=4))
    assert 2 == len(RemoteDataset(server.address, "d", batch_size=5))
    assert 3 == len(RemoteDataset(server.address, "d", batch_size=5, end="uneven"))


def test_no_more_than_the_budget_is_prefetched(server: ScriptedService) -> None:
    """A loop that rests lets the stream rest: the budget holds one batch."""
    dataset = RemoteDataset(
        server.address, "d", batch_size=4, transport=Transport(prefetch_bytes=32)
    )
    next(iter(dataset))
    running = dataset._live._running
    assert running is not None

    assert running._bytes <= 32
    dataset.close()


def test_an_error_ends_the_loop_and_the_next_loop_tries_again() -> None:
    """The batches before the error come first; the error does not stick."""

    def corrupt(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        yield from itertools.islice(_endless(request, context), 2)
        fail(context, grpc.StatusCode.DATA_LOSS, "SHARD_CORRUPT")

    with scripted_server(corrupt, _endless) as server:
        dataset = RemoteDataset(server.address, "d", batch_size=4)
        seen: list[tuple[int, int]] = []
        with pytest.raises(ShardCorruptError):
            seen.extend(_first(batch) for batch in dataset)
        rest = [_first(batch) for batch in dataset]
        dataset.close()

    assert WHOLE_EPOCHS[0] == seen + rest


def test_threads_end_with_the_dataset(server: ScriptedService) -> None:
    """A dataset that is dropped leaves no thread behind."""
    # Servers of other tests may still have theirs in this process.
    before = set(threading.enumerate())
    dataset = RemoteDataset(server.address, "d", batch_size=4)
    next(iter(dataset))
    del dataset
    gc.collect()

    assert [] == _ours_since(before)


def test_as_a_context_it_is_closed_at_its_end(server: ScriptedService) -> None:
    """Its thread is gone, though the dataset is not."""
    before = set(threading.enumerate())
    with RemoteDataset(server.address, "d", batch_size=4) as dataset:
        next(iter(dataset))
        assert _ours_since(before)

    assert [] == _ours_since(before)


def _ours_since(before: set[threading.Thread]) -> list[str]:
    left = set(threading.enumerate()) - before
    return [thread.name for thread in left if thread.name.startswith("headrace")]


@pytest.mark.parametrize("make", [RemoteDataset, NumpyDataset])
@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy])
def test_a_copy_has_a_place_of_its_own(
    server: ScriptedService, make: Callable[..., Any], travel: Callable[[Any], Any]
) -> None:
    """Whichever of the two is read, the other stays where it is."""
    with make(server.address, "numbers", batch_size=4) as dataset, travel(dataset) as other:
        next(iter(dataset))
        epochs = [[batch["x"].tolist() for batch in each] for each in (other, dataset)]

    assert (3, epochs[0][1:]) == (len(epochs[0]), epochs[1])


def test_a_pickled_dataset_goes_on_from_its_place(server: ScriptedService) -> None:
    """Threads and connections stay behind; the place travels."""
    dataset = RemoteDataset(server.address, "d", batch_size=4)
    next(iter(dataset))
    other = pickle.loads(pickle.dumps(dataset))
    dataset.close()

    assert WHOLE_EPOCHS[0][1:] == [_first(batch) for batch in other]
    other.close()


def test_a_dataloader_without_batching_hands_batches_through(server: ScriptedService) -> None:
    """DataLoader(batch_size=None) yields our batches, tokens and all."""
    dataset = RemoteDataset(server.address, "d", batch_size=4, epochs=1)

    found = list(DataLoader(dataset, batch_size=None))
    dataset.close()

    assert [token_at(0, 4, step=1), token_at(0, 8, step=2), token_at(1, 0, step=3)] == [
        batch.token for batch in found
    ]


def test_a_dataloader_that_batches_again_is_refused(server: ScriptedService) -> None:
    """Batches of batches are a mistake; the message says what to write."""
    dataset = RemoteDataset(server.address, "d", batch_size=4)

    with pytest.raises(BadArgumentError, match="batch_size=None"):
        next(iter(DataLoader(dataset, batch_size=2)))
    dataset.close()


def test_an_unreachable_server_is_an_error_that_names_it() -> None:
    """The loop gets our error, not gRPC's, within connect_s."""
    dataset = RemoteDataset(
        "127.0.0.1:1", "d", batch_size=4, transport=Transport(deadlines=Deadlines(connect_s=0.2))
    )

    with pytest.raises(ServerUnreachableError, match=r"127\.0\.0\.1:1"):
        next(iter(dataset))


def test_another_seed_than_the_states_is_refused(server: ScriptedService) -> None:
    """Going on with another order would lose and repeat samples in silence."""
    state = RemoteDataset(server.address, "d", batch_size=4).state_dict()
    other = RemoteDataset(server.address, "d", batch_size=4, seed=9)

    with pytest.raises(TokenSpecChangedError, match="seed"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4, "sharding": Sharding(global_batch_size=8)}, "batch_size"),
        (
            {"sharding": Sharding(global_batch_size=1), "rank": 0, "world_size": 2},
            "global_batch_size",
        ),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank"),
        ({"batch_size": 4, "rank": -1, "world_size": 2}, "rank"),
        ({"batch_size": 4, "rank": 1}, "rank"),
        ({"batch_size": 4, "rank": 0, "world_size": 0}, "world_size"),
        (
            {"batch_size": 4, "rank": 0, "world_size": 4, "mesh": {"dp": 2, "tp": 3}},
            "mesh",
        ),
        ({"batch_size": 4, "seed": -1}, "seed"),
        ({"batch_size": 4, "order": 5}, "order"),
        ({"batch_size": 4, "end": "sometimes"}, "end"),
        ({"batch_size": 4, "epochs": -1}, "epochs"),
        ({"batch_size": 4, "transport": "ring"}, "transport"),
        ({"batch_size": 4, "access": "a-token"}, "access"),
        ({"batch_size": 4, "sharding": {"global_batch_size": 3}}, "sharding"),
    ],
)
def test_arguments_out_of_range_are_refused_before_anything_travels(
    arguments: dict[str, object], field: str
) -> None:
    """Each refusal names the argument."""
    with pytest.raises(BadArgumentError) as error:
        RemoteDataset("127.0.0.1:1", "d", **arguments)  # type: ignore[arg-type] # on purpose
    assert field == error.value.metadata["field"]


def test_deadlines_that_have_passed_already_are_refused() -> None:
    """A wait of no time is no wait."""
    with pytest.raises(BadArgumentError, match=r"deadlines\.silence_s is 0"):
        Deadlines(silence_s=0)
