"""Mixtures over sockets: the same global batches from anywhere, whatever the world size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client import (
    BatchEvent,
    Mixture,
    MixtureEntry,
    ReadOptions,
)
from headrace.order import EndMode, OrderSpec, linear, piecewise
from support.datasets import small_table, write_dataset
from support.running import server_of
from support.transports import TRANSPORTS, batches_of, listen_for, plugs_for

SIZES = {"a": 90, "b": 1, "c": 47}
SLOW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module", params=TRANSPORTS)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server of three datasets whose samples name their dataset, in a small cache."""
    urls = {}
    for index, (name, count) in enumerate(SIZES.items()):
        urls[name] = str(tmp_path_factory.mktemp("mixtures") / name)
        table = small_table(count)
        origin = pa.array(np.full(count, index))
        # Not all at one place: each dataset has a layout of its own.
        table = table.add_column(index, "origin", origin)
        shards = [count // 3, count - count // 3]
        write_dataset(urls[name], table, shard_samples=shards, block_bytes=512)
    with listen_for(request.param) as listen:
        plugs = plugs_for(request.param)
        with server_of(urls, listen=listen, cache_bytes=1 << 14, plugs=plugs) as server:
            yield server.address


Pairs = tuple[tuple[int, int], ...]


def _pairs(event: BatchEvent) -> list[tuple[int, int]]:
    pairs = [tuple(pair) for pair in event.columns["headrace.sample_id"].values.tolist()]
    origins = event.columns["origin"].values.tolist()
    numbers = event.columns["number"].values.tolist()
    # Every column belongs to the sample that the pair names.
    assert pairs == list(zip(origins, numbers, strict=True))
    return pairs[: len(pairs) - event.header.pad_count]


def _run(
    address: str,
    mixture: Mixture,
    order: OrderSpec,
    *,
    size: int,
    world_size: int,
    end: EndMode = EndMode.DROP_LAST,
    token: bytes | None = None,
) -> list[tuple[int, int, Pairs, bytes]]:
    """Return epoch, step, samples and token of each global batch of two epochs."""
    ranks = [
        batches_of(
            address,
            ReadOptions(
                "",
                order,
                size,
                rank=rank,
                world_size=world_size,
                end=end,
                columns=("number", "origin"),
                with_ids=True,
                end_epoch=2,
                stages=(mixture,),
            ),
            token,
        )
        for rank in range(world_size)
    ]
    return [
        (
            parts[0].header.epoch,
            parts[0].header.step,
            tuple(pair for part in parts for pair in _pairs(part)),
            parts[0].header.resume_token,
        )
        for parts in zip(*ranks, strict=True)
    ]


def _entries(**amounts: list[float | int | None]) -> st.SearchStrategy[tuple[MixtureEntry, ...]]:
    ((option, choices),) = amounts.items()
    return st.tuples(
        *(
            st.builds(
                MixtureEntry,
                st.just(name),
                choice=st.sampled_from(["fresh", "fixed"] if option != "proportion" else ["fresh"]),
                granularity=st.sampled_from([1, 4]),
                **{option: st.sampled_from(choices)},
            )
            for name in SIZES
        )
    )


_SCHEDULES = [
    piecewise([0, 50, 130], [[1, 0, 0], [1, 2, 3], [0, 0, 1]]),
    linear([0, 200], [[1, 0, 1], [0, 1, 1]]),
]
_PLAIN = tuple(MixtureEntry(name) for name in SIZES)
MIXTURES = st.one_of(
    st.builds(
        Mixture,
        _entries(proportion=[0.5, 1, 3]),
        st.sampled_from(["random", "stratified"]),
        epoch_size=st.sampled_from([0, 100]),
    ),
    st.builds(Mixture, _entries(repeat=[0.5, 1.0, 2.5])),
    st.builds(Mixture, _entries(choose=[14, 20, 60]), st.sampled_from(["random", "stratified"])),
    st.builds(
        Mixture, st.just(_PLAIN), schedule=st.sampled_from(_SCHEDULES), epoch_size=st.just(120)
    ),
)
ORDERS = st.builds(
    OrderSpec,
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
    shuffle_samples=st.sampled_from([0, 16, 10**6]),
    lanes=st.sampled_from([1, 2]),
    unit=st.sampled_from([2, 12]),
    ramp=st.booleans(),
)


@SLOW
@given(
    mixture=MIXTURES,
    order=ORDERS,
    size=st.integers(4, 40),
    world_sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    end=st.sampled_from(list(EndMode)),
    data=st.data(),
)
def test_a_mixture_resumes_anywhere_with_any_world_size(
    *,
    address: str,
    mixture: Mixture,
    order: OrderSpec,
    size: int,
    world_sizes: tuple[int, int],
    end: EndMode,
    data: st.DataObject,
) -> None:
    """Two epochs with W ranks, resumed at any step with W' ranks, give the same global batches."""
    before, after = world_sizes
    whole = _run(address, mixture, order, size=size, world_size=before, end=end)
    cut = data.draw(st.integers(0, len(whole) - 1), label="batches before the rescale")

    rest = _run(address, mixture, order, size=size, world_size=after, end=end, token=whole[cut][3])

    assert whole[cut + 1 :] == rest


@SLOW
@given(
    # Several lanes round a dataset's draws and its samples apart, so at their borders a sample may
    # come once more and another once less.
    order=ORDERS.filter(lambda order: order.lanes == 1),
    repeats=_entries(repeat=[0.0, 1.0, 2.0]),
    world_size=st.integers(1, 3),
)
def test_an_epoch_of_repeats_holds_every_draw_once(
    *, address: str, order: OrderSpec, repeats: tuple[MixtureEntry, ...], world_size: int
) -> None:
    """With whole repeats each sample of a dataset comes exactly so often in an epoch."""
    mixture = Mixture(repeats)
    if not any(entry.repeat for entry in repeats):
        return
    batches = _run(address, mixture, order, size=12, world_size=world_size, end=EndMode.UNEVEN)

    wanted = sorted(
        (index, sample)
        for index, entry in enumerate(repeats)
        for sample in range(SIZES[entry.name])
        for _ in range(int(entry.repeat or 0))
    )
    for epoch in (0, 1):
        assert wanted == sorted(
            pair for at, _, pairs, _ in batches if at == epoch for pair in pairs
        )
