"""Real server and real client together: what the product promises, over sockets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client import BatchEvent, ReadOptions
from headrace.order import EndMode, OrderSpec, decode_token
from support.datasets import small_table, write_dataset
from support.running import server_of
from support.transports import TRANSPORTS, batches_of, listen_for, plugs_for

SAMPLES = 300
SLOW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module", params=TRANSPORTS)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server of 300 samples in shards of very different sizes."""
    url = str(tmp_path_factory.mktemp("conformance") / "d")
    write_dataset(url, small_table(SAMPLES), shard_samples=[1, 120, 7, 90, 82], block_bytes=512)
    with (
        listen_for(request.param) as listen,
        server_of({"d": url}, listen=listen, plugs=plugs_for(request.param)) as server,
    ):
        yield server.address


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """What all ranks together got at one step."""

    epoch: int
    step: int
    position: int
    ids: tuple[int, ...]
    token: bytes


def _ids(event: BatchEvent) -> list[int]:
    ids = [int(sample) for sample in event.columns["headrace.sample_id"].values.tolist()]
    # Every column belongs to the sample that the id names.
    assert ids == event.columns["number"].values.tolist()
    return ids[: len(ids) - event.header.pad_count]


def _run(
    address: str,
    order: OrderSpec,
    *,
    size: int,
    world_size: int,
    end: EndMode,
    epochs: int,
    token: bytes | None = None,
) -> list[GlobalBatch]:
    ranks = [
        batches_of(
            address,
            ReadOptions(
                "d",
                order,
                size,
                rank=rank,
                world_size=world_size,
                end=end,
                columns=("number",),
                with_ids=True,
                end_epoch=epochs,
            ),
            token,
        )
        for rank in range(world_size)
    ]
    assert 1 == len({len(rank) for rank in ranks})
    return [_joined(parts) for parts in zip(*ranks, strict=True)]


def _joined(parts: tuple[BatchEvent, ...]) -> GlobalBatch:
    heads = {
        (part.header.epoch, part.header.step, part.header.position, part.header.resume_token)
        for part in parts
    }
    assert 1 == len(heads)
    epoch, step, position, token = heads.pop()
    ids = tuple(sample for part in parts for sample in _ids(part))
    assert all(part.header.global_sample_count == len(ids) for part in parts)
    return GlobalBatch(epoch, step, position, ids, token)


ORDERS = st.builds(
    OrderSpec,
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
    shuffle_samples=st.sampled_from([0, 16, 100, 10**6]),
    lanes=st.sampled_from([1, 3]),
    unit=st.sampled_from([3, 24]),
    ramp=st.booleans(),
)


@SLOW
@given(
    order=ORDERS,
    size=st.integers(6, 70),
    world_sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    end=st.sampled_from(list(EndMode)),
    data=st.data(),
)
def test_a_rescale_anywhere_loses_and_repeats_nothing(
    *,
    address: str,
    order: OrderSpec,
    size: int,
    world_sizes: tuple[int, int],
    end: EndMode,
    data: st.DataObject,
) -> None:
    """Two epochs with W ranks, resumed at any step with W' ranks, give the same global batches."""
    before, after = world_sizes
    whole = _run(address, order, size=size, world_size=before, end=end, epochs=2)
    cut = data.draw(st.integers(0, len(whole) - 1), label="batches before the rescale")
    token = whole[cut].token

    rest = _run(
        address,
        order,
        size=size,
        world_size=after,
        end=end,
        epochs=2,
        token=token,
    )

    assert whole[cut + 1 :] == rest


@SLOW
@given(order=ORDERS, size=st.integers(4, 70), world_size=st.integers(1, 4))
def test_an_uneven_epoch_holds_every_sample_once(
    *, address: str, order: OrderSpec, size: int, world_size: int
) -> None:
    """The union over ranks is the epoch."""
    batches = _run(address, order, size=size, world_size=world_size, end=EndMode.UNEVEN, epochs=1)

    assert list(range(SAMPLES)) == sorted(sample for batch in batches for sample in batch.ids)


@SLOW
@given(order=ORDERS, size=st.integers(4, 70), new_size=st.integers(4, 70))
def test_another_global_batch_moves_the_borders_and_not_the_order(
    *, address: str, order: OrderSpec, size: int, new_size: int
) -> None:
    """The samples after a resume with another global batch size come in the same order."""
    whole = _run(address, order, size=size, world_size=1, end=EndMode.UNEVEN, epochs=1)
    token = whole[0].token
    at = decode_token(token)
    if at.epoch > 0:
        return

    rest = _run(
        address,
        order,
        size=new_size,
        world_size=1,
        end=EndMode.UNEVEN,
        epochs=1,
        token=token,
    )

    assert [sample for batch in whole[1:] for sample in batch.ids] == [
        sample for batch in rest for sample in batch.ids
    ]
