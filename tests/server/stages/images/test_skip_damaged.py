"""Tests of damaged images that others stand in for.

How it could give wrong samples, hang or let somebody in, and what holds against each:

1. A substitute that follows the world size, a resume, another stream's findings or the server's
   age: `test_the_same_for_all_ranks`, `test_what_is_known_changes_nothing`.
2. An image of one sample and the label of another: `test_rows_are_whole`.
3. Another substitute than the documented one: `test_is_the_rule_of_skips`.
4. A dataset of nothing but damage, in which one looks for ever: `test_nothing_but_damage`.
5. Damage that nobody hears of: `test_is_counted_and_listed`.
6. A head that is whole before pixels that are not, or too many: `test_kinds_of_damage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.client import (
    Cast,
    DecodeImage,
    MixUp,
    Normalize,
    NumpyDataset,
    RandomResizedCrop,
    RemoteDataset,
    Ring,
    Selection,
    Transport,
)
from headrace.errors import BadArgumentError, StageFailedError, TokenSpecChangedError
from headrace.order import Order, OrderSpec, Skips, table_of
from headrace.server import Server
from headrace.storage import open_dataset
from support.bombs import claimed_png
from support.datasets import write_dataset
from support.images import noise_bytes
from support.rank_batches import GLOBAL_BATCH, SEED, rank_batches
from support.running import server_of

_SAMPLES = 60
_DAMAGED = {3: "cut", 4: "text", 17: "empty", 31: "bomb", 32: "cut", 33: "cut", 59: "text"}
_CROP = [RandomResizedCrop(9)]
_SKIP = DecodeImage("image", transforms=_CROP, on_error="skip")
_FLOAT = DecodeImage(
    "image", transforms=[*_CROP, Normalize((0.4,) * 3, (0.3,) * 3)], on_error="skip"
)
_STEPS: dict[str, list[Any]] = {
    "last": [_SKIP],
    "not last": [_SKIP, Cast("image", "float32")],
    "mixed": [_FLOAT, MixUp("image", "number", num_classes=_SAMPLES)],
    "CHW": [DecodeImage("image", transforms=_CROP, on_error="skip", layout="CHW")],
}


def _photo(number: int, kind: str = "whole") -> bytes:
    content = noise_bytes(number, "JPEG")
    found = {"whole": content, "cut": content[:-200], "text": b"no image", "empty": b""}
    return found[kind] if kind != "bomb" else claimed_png(60000, 60000)


def _write(url: str, kinds: dict[int, str], *, count: int = _SAMPLES) -> str:
    files = [_photo(number, kinds.get(number, "whole")) for number in range(count)]
    table = pa.table({"image": pa.array(files, pa.binary()), "number": list(range(count))})
    write_dataset(url, table, shard_samples=[count // 3, count - count // 3], block_bytes=2048)
    return url


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Photographs, some of them damaged; whole ones; and nothing but damage."""
    folder = tmp_path_factory.mktemp("d")
    return {
        "some": _write(str(folder / "some"), _DAMAGED),
        "whole": _write(str(folder / "whole"), {}),
        "all": _write(str(folder / "all"), dict.fromkeys(range(_SAMPLES), "text")),
        "few": _write(str(folder / "few"), dict.fromkeys(range(5), "text"), count=5),
    }


@pytest.fixture(scope="module")
def server(urls: dict[str, str]) -> Iterator[Server]:
    """A server of them."""
    with server_of(urls, metrics_listen="127.0.0.1:0") as running:
        yield running


def _read(
    server: Server, steps: list[Any], *, rank: int = 0, world: int = 1, **options: Any
) -> list[list[Any]]:
    given = {"name": "some", **options}
    seen = []
    for batch in rank_batches(server, stages=steps, rank=rank, world=world, **given):
        arrays = batch.to_numpy()
        rows = zip(arrays["number"], arrays["image"], strict=True)
        seen.append([(number.tobytes(), image.tobytes()) for number, image in rows])
    return seen


def _joined(parts: list[list[Any]]) -> list[list[Any]]:
    return [list(chain.from_iterable(own)) for own in zip(*parts, strict=True)]


@pytest.mark.parametrize("kind", _STEPS)
def test_the_same_for_all_ranks(urls: dict[str, str], kind: str) -> None:
    """Each rank's rows are those of one rank, from servers that find the damage by themselves."""
    rows = []
    for world in (1, 2, 3):
        with server_of(urls) as fresh:
            parts = [_read(fresh, _STEPS[kind], rank=rank, world=world) for rank in range(world)]
        rows.append(_joined(parts))

    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("kind", _STEPS)
def test_what_is_known_changes_nothing(server: Server, kind: str) -> None:
    """Another run, and one that goes on from a token, has the same rows."""
    first, again = (_read(server, _STEPS[kind]) for _ in range(2))
    options: dict[str, Any] = {"batch_size": 6, "seed": SEED, "end": "uneven", "epochs": 2}
    with NumpyDataset(
        server.address, "some", stages=_STEPS[kind], rank=1, world_size=2, **options
    ) as dataset:
        batches = iter(dataset)
        for _ in range(3):
            next(batches)
        token = dataset.token
    rest = [_read(server, _STEPS[kind], rank=rank, world=3, token=token) for rank in range(3)]

    assert first == again
    assert first[3:] == _joined(rest)


def _numbers(rows: list[list[Any]]) -> list[int]:
    return [int.from_bytes(number, "little") for batch in rows for number, _ in batch]


def _substitute(order: Order, epoch: int, sample_id: int) -> int:
    damaged = [sample_id]
    while damaged[-1] in _DAMAGED:
        # The rule of skips, with a list of these samples.
        skipping = Order(order.spec, order.table, skips=Skips(damaged))
        (position,) = order.positions(epoch, np.array([sample_id])).tolist()
        damaged.append(int(skipping.sample_ids(epoch, position, position + 1)[0]))
    return damaged[-1]


def test_is_the_rule_of_skips(server: Server, urls: dict[str, str]) -> None:
    """What stands in is what the list of skips with the damaged samples before it would give."""
    table = table_of(open_dataset(urls["some"]).stretches())
    order = Order(OrderSpec(seed=SEED), table)
    wanted = [
        _substitute(order, epoch, number)
        for epoch in range(2)
        for number in order.sample_ids(epoch, 0, _SAMPLES).tolist()
    ]

    assert wanted == _numbers(_read(server, [_SKIP]))


def test_rows_are_whole(server: Server) -> None:
    """Each image is that of its number, as the same place of undamaged data crops it."""
    options: dict[str, Any] = {"shuffle": False, "epochs": 1}
    whole = chain.from_iterable(_read(server, [_SKIP], name="whole", **options))
    some = chain.from_iterable(_read(server, [_SKIP], **options))
    for at, ((number, image), (_, plain)) in enumerate(zip(some, whole, strict=True)):
        assert (int.from_bytes(number, "little") != at) == (at in _DAMAGED)
        assert (image == plain) == (at not in _DAMAGED)


def test_is_counted_and_listed(server: Server) -> None:
    """Each batch names the samples that others stand in for, and metrics count them."""
    options: dict[str, Any] = {"batch_size": GLOBAL_BATCH, "seed": SEED, "end": "pad", "epochs": 1}
    before = _metric(server)
    listed: list[Any] = []
    with RemoteDataset(server.address, "some", stages=[_SKIP], **options) as dataset:
        for batch in dataset:
            assert batch.substitute_count == 0
            listed += batch.damaged_ids
        assert dataset.stats().damaged_count == len(_DAMAGED)
    skipping = RemoteDataset(
        server.address, Selection("some", skips=sorted(_DAMAGED)), stages=[_SKIP], **options
    )

    assert sorted(_DAMAGED) == sorted(listed)
    assert _metric(server) - before == len(_DAMAGED)
    assert [batch.damaged_ids for batch in skipping] == [()] * 5


def _metric(server: Server) -> float:
    with urlopen(f"http://{server.metrics_address}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "headrace_damaged_samples_total" and sample.labels["dataset"] == "some"
    )


def test_in_a_mixture(server: Server) -> None:
    """Of a mixture the dataset is named too; other ranks have the same rows."""
    mixed = [("whole", 0.5), ("some", 0.5)]
    parts: list[list[Any]] = []
    listed: set[Any] = set()
    for world in (1, 2):
        own: list[list[Any]] = []
        for rank in range(world):
            dataset = RemoteDataset(
                server.address,
                mixed,
                batch_size=GLOBAL_BATCH // world,
                stages=[_SKIP],
                epochs=2,
                rank=rank,
                world_size=world,
            )
            own.append([])
            for batch in chain(dataset, dataset):
                own[-1].append([image.tobytes() for image in batch.to_numpy()["image"]])
                listed.update(batch.damaged_ids)
        parts.append(_joined(own))

    assert parts[0] == parts[1]
    assert listed
    assert listed <= {(1, number) for number in _DAMAGED}


def test_with_a_filter(server: Server) -> None:
    """What stands in for a kept sample is a kept one."""
    rows = _read(server, [_SKIP], name=Selection("some", where="number < 40 and number > 1"))
    numbers = _numbers(rows)

    assert len(numbers) == 2 * 38
    assert set(numbers) == set(range(2, 40)).difference(_DAMAGED)


def test_in_a_ring(urls: dict[str, str], tmp_path: Any) -> None:
    """Through shared memory, in few slots, the rows are the same."""
    transport = Transport("ring", [Ring(2 * (12 * 170 * 170 * 3 + 4096) + (64 << 10))])
    large = DecodeImage("image", transforms=[RandomResizedCrop(170)], on_error="skip")
    with server_of(urls, listen=f"unix:{tmp_path / 'socket'}", stage_threads=2) as running:
        by_ring = _read(running, [large], transport=transport)
        assert by_ring == _read(running, [large], transport=Transport("grpc"))


@pytest.mark.parametrize("name", ["all", "few"])
def test_nothing_but_damage(server: Server, name: str) -> None:
    """Where nothing can stand in for a sample the stream fails, and says why."""
    wanted = r"cannot be decoded, and (neither can 16 samples|there is no)"
    with pytest.raises(StageFailedError, match=wanted):
        _read(server, [_SKIP], name=name)


def test_kinds_of_damage(server: Server) -> None:
    """Each kind fails without `on_error`, so that the test above is one of all of them."""
    plain = DecodeImage("image", transforms=_CROP)
    for number in _DAMAGED:
        others = sorted(set(range(_SAMPLES)) - {number, 0})
        with pytest.raises(StageFailedError, match=f"sample {number} "):
            _read(server, [plain], name=Selection("some", skips=others), epochs=1)


def test_tokens(server: Server) -> None:
    """A run that skips goes on as one that skips, alone."""
    with NumpyDataset(
        server.address, "some", batch_size=GLOBAL_BATCH, seed=SEED, stages=[_SKIP]
    ) as dataset:
        next(iter(dataset))
        token = dataset.token
    with pytest.raises(TokenSpecChangedError, match="other stages"):
        _read(server, [DecodeImage("image", transforms=_CROP)], token=token)


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore", "transforms": _CROP},
        {"on_error": True, "transforms": _CROP},
    ],
)
def test_refused(options: dict[str, Any]) -> None:
    """Only what there is can be asked for."""
    with pytest.raises(BadArgumentError, match=r"DecodeImage\.on_error"):
        DecodeImage("image", **options)
