"""What the server does with batches does not depend on the world size, nor on a resume."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client import (
    BatchEvent,
    Cast,
    Pad,
    ReadOptions,
    Transform,
)
from headrace.order import EndMode, OrderSpec
from headrace.server.stages.transforms import TransformSettings
from support.datasets import write_dataset
from support.running import server_of
from support.transports import TRANSPORTS, batches_of, listen_for, plugs_for

SAMPLES = 90
SLOW = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module", params=TRANSPORTS)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server of 90 samples, with a transform that draws random numbers."""
    url = str(tmp_path_factory.mktemp("steps") / "d")
    numbers = range(SAMPLES)
    item = pa.field("item", pa.int32(), nullable=False)
    table = pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "tokens": pa.array([[n] * (n % 5) for n in numbers], pa.list_(item)),
            "text": pa.array([f"sample {n}" * (n % 3) for n in numbers]),
            "grid": pa.array([[n, -n] for n in numbers], pa.list_(item, 2)),
            "even": pa.array([n % 2 == 0 for n in numbers]),
        }
    )
    write_dataset(url, table, shard_samples=[30, 60], block_bytes=512)
    with pytest.MonkeyPatch.context() as patch, listen_for(request.param) as listen:
        noise = ("noise=support.transforms:noise@1",)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
        with server_of(
            {"d": url},
            listen=listen,
            plugs=(
                TransformSettings(transforms=noise, transform_timeout_s=60.0),
                *plugs_for(request.param),
            ),
        ) as server:
            yield server.address


def _rows(address: str, options: ReadOptions, token: bytes | None) -> list[list[object]]:
    """Return what each batch holds of each sample, pads left out."""
    return [_samples(event) for event in batches_of(address, options, token, wait_s=60)]


def _samples(event: BatchEvent) -> list[object]:
    columns: list[list[object]] = []
    for view in event.columns.values():
        if view.offsets is None:
            columns.append(view.values.tolist())
        else:
            pairs = zip(view.offsets[:-1].tolist(), view.offsets[1:].tolist(), strict=True)
            columns.append([view.values[a:b].tolist() for a, b in pairs])
    rows: list[object] = [[event.header.resume_token, *row] for row in zip(*columns, strict=True)]
    return rows[: len(rows) - event.header.pad_count]


@SLOW
@given(
    steps=st.sampled_from(
        [
            (Transform("noise"),),
            (Pad("tokens", 4), Cast("number", "float32")),
            (Transform("noise", "1"), Pad("tokens", 5, fill=-1), Cast("tokens", "int16")),
        ]
    ),
    order=st.builds(
        OrderSpec,
        seed=st.integers(0, 3),
        shuffle_samples=st.sampled_from([0, 16]),
        lanes=st.sampled_from([1, 2]),
        unit=st.just(4),
    ),
    size=st.integers(4, 40),
    world_size=st.integers(2, 4),
    end=st.sampled_from(list(EndMode)),
    data=st.data(),
)
def test_all_ranks_get_what_one_rank_gets(
    *,
    address: str,
    steps: tuple[Cast | Pad | Transform, ...],
    order: OrderSpec,
    size: int,
    world_size: int,
    end: EndMode,
    data: st.DataObject,
) -> None:
    """Every value of every sample of W ranks, also from a resume on, is that of one rank."""

    def read(rank: int, ranks: int, token: bytes | None = None) -> list[list[object]]:
        options = ReadOptions(
            "d",
            order,
            size,
            rank=rank,
            world_size=ranks,
            end=end,
            with_ids=True,
            end_epoch=2,
            stages=steps,
        )
        return _rows(address, options, token)

    whole = read(0, 1)
    cut = data.draw(st.integers(0, len(whole) - 2), label="batches before the resume")
    token = whole[cut][0][0]  # type: ignore[index]  # rows are lists that begin with the token

    parts = [read(rank, world_size, token) for rank in range(world_size)]

    joined = [[row for part in batch for row in part] for batch in zip(*parts, strict=True)]
    assert whole[cut + 1 :] == joined
