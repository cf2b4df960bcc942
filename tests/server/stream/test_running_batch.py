"""Tests of batches that are started while the images of the one before are made.

How it could go wrong, and what holds against each:

1. It is not started at all, and processors wait: `test_the_next_batch_is_started_meanwhile`, and
   between two epochs `test_the_next_epoch_is_started_meanwhile`.
2. It comes out otherwise than without, or in another order: likewise.
3. It is started where there is no room for it, and the stream waits: `test_where_there_is_no_room`.
4. It works on after its stream has ended: `test_leaving_ends_both`.
5. One that failed keeps what was made until Python looks for cycles, and the server outgrows its
   budget: `test_a_failed_batch_is_let_go_at_once`.
"""

from __future__ import annotations

import gc
import io
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from headrace.client import ColorJitter, DecodeImage, RandomResizedCrop
from headrace.server.batch.stage import Running
from headrace.server.batch.targets import Places, WireOutlet
from headrace.server.shares import ShortError
from headrace.server.stream.running_batch import Outcome, RunningBatch
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from support.datasets import write_dataset
from support.streams import Streams, streams_of

_ROWS, _BATCHES = 8, 4
_ROW_NS = 1_000_000
# Each image takes some ten times that, so that a batch takes longer than what is started beside it.
_STEP = DecodeImage("image", transforms=[RandomResizedCrop(300), ColorJitter(0.5, 0.5, 0.5, 0.2)])


class _Counted(WireOutlet):
    """Counts the batches that have been given a place."""

    def __init__(self, *, has_room: bool) -> None:
        super().__init__(1 << 20)
        self.started = 0
        self._is_roomy = has_room

    def has_room(self) -> bool:
        return self._is_roomy

    def places(self) -> Places:
        self.started += 1
        return super().places()


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    """Photographs whose blocks are in the cache."""
    files = []
    for number in range(_ROWS * _BATCHES):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 80, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        files.append(file.getvalue())
    url = str(tmp_path_factory.mktemp("started") / "photos")
    table = pa.table({"image": pa.array(files, pa.binary())})
    write_dataset(url, table, shard_samples=[len(files)], block_bytes=1 << 14)
    with streams_of(url) as found:
        whole = pb.ReadBatchesRequest(dataset="small", global_batch_size=len(files), world_size=1)
        whole.epoch_start.SetInParent()
        whole.epoch_count = 1
        list(found.open(whole).messages())
        yield found


def _request(*, epoch_count: int = 1) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="small",
        global_batch_size=_ROWS,
        world_size=1,
        epoch_count=epoch_count,
        epoch_start=pb.EpochStart(),
        stages=[packed(_STEP.to_message())],
    )


def _sent(
    streams: Streams, outlet: _Counted, *, epoch_count: int = 1
) -> tuple[list[bytes], list[int]]:
    """Return the messages, and how many batches had been started when each batch's first came."""
    messages: list[bytes] = []
    started: list[int] = []
    for message in streams.open(_request(epoch_count=epoch_count), outlet).messages():
        response = pb.ReadBatchesResponse.FromString(message)
        if response.HasField("heartbeat"):
            continue
        if response.HasField("batch"):
            started.append(outlet.started)
        messages.append(message)
    return messages, started


def test_the_next_batch_is_started_meanwhile(streams: Streams) -> None:
    """When a batch comes the next one has its place, and all are what they are one by one.

    On a machine that is very busy one may be late, but hardly all of them.
    """
    messages, started = _sent(streams, _Counted(has_room=True))
    alone, one_by_one = _sent(streams, _Counted(has_room=False))

    assert one_by_one == [1, 2, 3, 4]
    assert all(0 <= each - place <= 1 for each, place in zip(started, one_by_one, strict=True))
    assert started != one_by_one
    assert messages == alone


def test_the_next_epoch_is_started_meanwhile(streams: Streams) -> None:
    """When the last batch of an epoch comes, the first one of the next has its place.

    The ends of epochs stay where they are. On a busy machine one may be late, but hardly all.
    """
    epochs = 6
    messages, started = _sent(streams, _Counted(has_room=True), epoch_count=epochs)
    alone, one_by_one = _sent(streams, _Counted(has_room=False), epoch_count=epochs)
    lasts = range(_BATCHES - 1, _BATCHES * (epochs - 1), _BATCHES)

    assert one_by_one == list(range(1, _BATCHES * epochs + 1))
    assert all(0 <= started[last] - one_by_one[last] <= 1 for last in lasts)
    assert any(started[last] > one_by_one[last] for last in lasts)
    assert messages == alone


def test_where_there_is_no_room(streams: Streams) -> None:
    """Room that comes while a batch is written is used, and none is waited for."""
    outlet = _Counted(has_room=False)
    with closing(streams.open(_request(), outlet).messages()) as messages:
        next(messages)
        next(messages)
        assert outlet.started == 1
        outlet._is_roomy = True
        assert len([each for each in messages if each]) >= _BATCHES - 1
    assert outlet.started == _BATCHES


def test_leaving_ends_both(streams: Streams) -> None:
    """A stream that is left while two batches are worked on leaves no thread at them."""
    outlet, others = _Counted(has_room=True), _worked()
    messages = streams.open(_request(), outlet).messages()
    while outlet.started < 2:
        next(messages)
    messages.close()
    started, worked = outlet.started, _worked()
    time.sleep(0.3)
    later = _worked()
    ours = worked.keys() - others

    assert ours
    # To be told that there is nothing to do takes some microseconds.
    assert all(later[each] - worked[each] < _ROW_NS for each in ours)
    assert outlet.started == started


def _worked() -> dict[int, int]:
    """Return for how many ns each thread that works on rows has run, as the system counts it."""
    ids = [each.native_id or 0 for each in threading.enumerate() if each.name == "headrace-rows"]
    stats = {each: Path(f"/proc/self/task/{each}/schedstat").read_text() for each in ids}
    return {each: int(text.split()[0]) for each, text in stats.items()}


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_failed_batch_is_let_go_at_once(*, is_asked: bool) -> None:
    """Whether its failure is raised, or it is dropped without."""
    made: list[weakref.ref[object]] = []

    def work(_running: RunningBatch) -> Running[Outcome]:
        payload = np.zeros(8)
        made.append(weakref.ref(payload))
        yield None
        raise ShortError(payload.nbytes)

    gc.collect()
    gc.disable()
    try:
        running = RunningBatch(None, work, claimed=0)  # type: ignore[arg-type] # it only keeps the plan
        running.advance()
        running.advance()
        if is_asked:
            with pytest.raises(ShortError) as raised:
                running.result()
            del raised
        dropped = weakref.ref(running)
        del running
        assert made[0]() is None
        assert dropped() is None
    finally:
        gc.enable()
