"""Batches as NumPy arrays: the same samples as torch gets, without torch."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from headrace.client import NumpyDataset, Order, RemoteDataset, Selection, Sharding
from headrace.client.wire.assembler import BatchEvent
from headrace.errors import BadArgumentError
from headrace.v1 import shard_service_pb2 as pb
from support.mixed import SAMPLES, mixed_server, write_mixed
from support.scripted_server import scripted_server
from support.wire import batch_messages, start_message, token_at


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of 100 samples with columns of each kind."""
    url = str(tmp_path_factory.mktemp("mixed") / "mixed")
    write_mixed(url)
    with mixed_server(url) as running:
        yield running


def _numbers(dataset: NumpyDataset) -> list[list[int]]:
    return [arrays["number"].tolist() for arrays in dataset]


def test_the_batches_are_those_of_torch(address: str) -> None:
    """One seed is one order, whichever library reads, in this epoch and the next."""
    torch_dataset = RemoteDataset(address, "mixed", batch_size=16, seed=3, epochs=2)
    wanted = []
    for batch in [*torch_dataset, *torch_dataset]:
        number = batch["number"]
        assert isinstance(number, torch.Tensor)
        wanted.append(number.tolist())
    torch_dataset.close()

    dataset = NumpyDataset(address, "mixed", batch_size=16, seed=3, epochs=2)

    assert wanted == _numbers(dataset) + _numbers(dataset)
    assert [] == _numbers(dataset)


def test_the_objects_mean_what_they_mean_for_torch(address: str) -> None:
    """Some of the samples, in another order, of which two ranks get the same."""
    source = Selection("mixed", where="number < 60", skips=[1, 2])
    given: dict[str, Any] = {
        "seed": 3,
        "epochs": 1,
        "end": "uneven",
        "world_size": 4,
        "order": Order(shuffle_samples=20),
        "mesh": {"dp": 2, "tp": 2},
        "sharding": Sharding(global_batch_size=24),
    }
    with RemoteDataset(address, source, rank=3, **given) as torch_dataset:
        wanted = [batch.to_numpy()["number"].tolist() for batch in torch_dataset]

    # Other samples take the places of those that are skipped.
    assert 30 == sum(map(len, wanted))
    assert not {1, 2} & {number for batch in wanted for number in batch}
    assert wanted == _numbers(NumpyDataset(address, source, rank=2, **given))
    with pytest.raises(BadArgumentError, match="dataset is a mixture"):
        NumpyDataset(address, [("mixed", 1.0)], batch_size=4)  # type: ignore[arg-type] # the claim


def test_every_column_has_its_values(address: str) -> None:
    """Numbers in their dtype, text and bytes and lists as objects, nulls as None or not valid."""
    (arrays,) = NumpyDataset(address, "mixed", batch_size=SAMPLES, shuffle=False, epochs=1)

    assert (np.dtype(np.int64), (SAMPLES,)) == (arrays["number"].dtype, arrays["number"].shape)
    assert (np.dtype(np.int16), (SAMPLES, 2)) == (arrays["grid"].dtype, arrays["grid"].shape)
    assert [None, "sample 1"] == arrays["name"][:2].tolist()
    assert [b"", b"\x01", b"\x02\x02"] == arrays["blob"][:3].tolist()
    assert [0, 1, 2] == arrays["ragged"][3].tolist()
    assert [i % 7 != 0 for i in range(SAMPLES)] == arrays["maybe.valid"].tolist()
    assert 0.5 == arrays["maybe"][1]


def test_it_reads_ahead_while_the_loop_is_away() -> None:
    """The server has sent all of more than buffers hold, and the loop has one batch."""
    sent_all = threading.Event()
    payload = np.zeros(1 << 18, np.int64).tobytes()

    def send(
        request: pb.ReadBatchesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ReadBatchesResponse]:
        del request, context
        yield start_message()
        for number in range(16):
            after = token_at(0, 4 * (number + 1)) if number < 15 else token_at(1, 0)
            yield from batch_messages([payload], token=after, sample_count=1 << 18)
        sent_all.set()

    with scripted_server(send) as server:
        for _ in NumpyDataset(server.address, "d", batch_size=1 << 18, epochs=1):
            assert sent_all.wait(60)
            break


def test_it_goes_on_after_a_break_and_from_a_token(address: str) -> None:
    """The rest of the epoch follows, here or in another process that was given the token."""
    whole = _numbers(NumpyDataset(address, "mixed", batch_size=10, epochs=1))
    dataset = NumpyDataset(address, "mixed", batch_size=10, epochs=1)
    for _ in dataset:
        break
    elsewhere = NumpyDataset(address, "mixed", batch_size=10, epochs=1).resume(dataset.token)

    assert whole[1:] == _numbers(dataset)
    assert whole[1:] == _numbers(elsewhere)


def test_it_closes_and_goes_on(address: str) -> None:
    """As a context or by a call; then the same loop opens a new stream, or the next one does."""
    whole = _numbers(NumpyDataset(address, "mixed", batch_size=16, seed=3, epochs=1))
    with NumpyDataset(address, "mixed", batch_size=16, seed=3, epochs=1) as dataset:
        running = iter(dataset)
        first = next(running)["number"].tolist()
    assert dataset._live._running is None
    second = next(running)["number"].tolist()
    dataset.close()

    assert whole == [first, second, *_numbers(dataset)]


def test_loops_share_one_stream_until_it_is_closed(address: str) -> None:
    """The next loop goes on with the stream of the last, also after a break; `close` ends it."""
    whole = NumpyDataset(address, "mixed", batch_size=16, seed=3, epochs=4)
    epochs = [_numbers(whole) for _ in range(4)]
    dataset = NumpyDataset(address, "mixed", batch_size=16, seed=3, epochs=4)
    assert epochs[0] == _numbers(dataset)
    first = dataset._live._running
    assert first is not None
    for _ in dataset:
        break
    assert epochs[1][1:] == _numbers(dataset)
    assert first is dataset._live._running
    dataset.close()

    assert epochs[2] == _numbers(dataset)
    assert dataset._live._running is not first
    assert epochs[3] == _numbers(dataset)
    assert dataset._live._running is None


def test_a_dataset_that_is_dropped_ends_its_stream(address: str) -> None:
    """Nobody has to close a dataset between two epochs: its thread ends with it."""
    dataset = NumpyDataset(address, "mixed", batch_size=16, epochs=2)
    assert _numbers(dataset)
    running = dataset._live._running
    assert running is not None
    del dataset
    gc.collect()

    with pytest.raises(BadArgumentError):
        running.get()


def test_a_forked_process_opens_a_stream_of_its_own(address: str) -> None:
    """It has no thread that reads on; the next epoch opens a new stream, with the same batches."""
    program = (
        "from headrace.client import NumpyDataset\n"
        "from headrace.client.api import live_stream\n"
        f"def make(): return NumpyDataset({address!r}, 'mixed', batch_size=16, seed=3, epochs=2)\n"
        "dataset = make()\n"
        "list(dataset)\n"
        "parents = dataset._live._running\n"
        "live_stream._become_another()\n"  # as a child does; gRPC may hang in a real one
        "own = [a['number'].tolist() for a in dataset]\n"
        "assert not parents._closed\n"
        "dataset = make()\n"
        "list(dataset)\n"
        "assert own == [a['number'].tolist() for a in dataset]\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_batch_that_cannot_become_arrays_comes_again(address: str) -> None:
    """It did not reach the loop, so the next loop starts with it."""
    whole = _numbers(NumpyDataset(address, "mixed", batch_size=16, seed=3, epochs=1))
    dataset = NumpyDataset(address, "mixed", batch_size=16, seed=3, epochs=1)

    def fail(event: BatchEvent) -> None:
        del event
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    running = iter(dataset)
    first = next(running)["number"].tolist()
    with pytest.raises(UnicodeDecodeError):
        next(dataset._rest_of_epoch(fail))

    assert whole == [first, *_numbers(dataset)]


def test_ranks_share_the_epoch(address: str) -> None:
    """Two ranks see every sample once."""
    ranks = [
        NumpyDataset(
            address, "mixed", batch_size=8, rank=rank, world_size=2, epochs=1, end="uneven"
        )
        for rank in range(2)
    ]

    seen = [number for rank in ranks for numbers in _numbers(rank) for number in numbers]

    assert list(range(SAMPLES)) == sorted(seen)


def test_bad_sizes_are_refused_at_once() -> None:
    """Nothing is asked of a server that is not there."""
    with pytest.raises(BadArgumentError, match="batch_size is 0"):
        NumpyDataset("127.0.0.1:1", "mixed", batch_size=0)


def test_torch_is_not_imported(address: str) -> None:
    """A process that reads arrays pays for no torch, and needs none."""
    program = (
        "import sys; from headrace.client import NumpyDataset; "
        f"n = sum(1 for _ in NumpyDataset({address!r}, 'mixed', batch_size=10, epochs=1)); "
        "print(n, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )

    assert ["10", "False"] == done.stdout.split()
