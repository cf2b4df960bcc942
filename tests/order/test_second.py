"""The implementation in JavaScript, which follows docs/order.md, gives the same order."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.order import (
    Batching,
    Choice,
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    Order,
    OrderSpec,
    Schedule,
    ShardTable,
    Skips,
    Subset,
    SubsetMixtureOrder,
    SubsetOrder,
    Token,
    buckets_text,
    encode_token,
    joined_digest,
    linear,
    piecewise,
    stages_of,
)

_SECOND = Path(__file__).parent / "second" / "order.mjs"
_NODE = shutil.which("node")
_NUMBERS = ("epoch", "position", "global_batch_size", "step", "sample_count")


_Question = tuple[Order | MixtureOrder | SubsetOrder | SubsetMixtureOrder, int, dict[str, Any]]


def _spec(rng: np.random.Generator) -> OrderSpec:
    lanes = int(rng.choice([1, 1, 1, 2, 5]))
    return OrderSpec(
        seed=int(rng.integers(0, 2**63)),
        shuffle=bool(rng.random() < 0.95),
        run_bytes=int(2 ** rng.uniform(0, 18)),
        shuffle_bytes=int(rng.choice([0, 2 ** rng.uniform(0, 26)])),
        shuffle_samples=int(rng.choice([0, 2 ** rng.uniform(0, 16)])),
        lanes=lanes,
        unit=int(rng.integers(lanes, 3000)),
        ramp=bool(rng.random() < 0.7),
    )


def _epoch(rng: np.random.Generator) -> int:
    # The first one, which may have a ramp, or any.
    return int(rng.integers(0, 2**62)) if rng.random() < 0.5 else 0


def _table(rng: np.random.Generator, shards: int, samples: int) -> ShardTable:
    counts = rng.multinomial(int(rng.integers(1, samples)), rng.dirichlet(np.ones(shards)))
    blocks = rng.integers(0, 50, shards) * int(rng.integers(0, 2))
    if rng.random() < 0.1:
        blocks = counts  # Each shard can only be read whole.
    return ShardTable(
        counts.astype(np.int64),
        counts * rng.integers(0, 3000, shards),
        block_samples=blocks.astype(np.int64),
    )


def _orders(seed: int, count: int, *, samples: int) -> list[_Question]:
    """Draw orders of up to so many samples, with an epoch and the same in JSON."""
    rng = np.random.default_rng(seed)
    drawn: list[_Question] = []
    for _ in range(count):
        table, spec = _table(rng, int(rng.integers(1, 60)), samples), _spec(rng)
        epoch = _epoch(rng)
        skips = Skips(_skips(rng, table.sample_count))
        fields = _fields(spec, epoch) | _dataset_fields(table, skips)
        drawn.append((Order(spec, table, skips=skips), epoch, fields))
    return drawn


def _kept_orders(seed: int, count: int, *, samples: int) -> list[_Question]:
    """The same of the samples that filters keep."""
    rng = np.random.default_rng(seed)
    drawn: list[_Question] = []
    for _ in range(count):
        table, spec = _table(rng, int(rng.integers(1, 60)), samples), _spec(rng)
        epoch, ids = _epoch(rng), _kept(rng, table.sample_count)
        kept = _kept_of(ids, table.sample_count)
        # Some of both kinds, but never all that are kept.
        skips = Skips(np.setdiff1d(_skips(rng, table.sample_count), ids[:1]))
        fields = _fields(spec, epoch) | _dataset_fields(table, skips) | {"kept": ids.tolist()}
        order = SubsetOrder(spec, kept.table(table), kept, skips=skips)
        drawn.append((order, epoch, fields))
    return drawn


def _kept(rng: np.random.Generator, samples: int) -> NDArray[np.int64]:
    # Few, many, all or a stretch; one at least.
    kind = rng.integers(0, 4)
    if kind == 0:
        low, high = np.sort(rng.integers(0, samples, 2))
        return np.arange(low, high + 1)
    mask = rng.random(samples) < (0.02, 0.6, 1.0)[kind - 1]
    mask[rng.integers(0, samples)] = True
    return np.flatnonzero(mask)


def _kept_of(ids: NDArray[np.int64], samples: int) -> Subset:
    mask = np.zeros(samples, np.bool_)
    mask[ids] = True
    return Subset(np.packbits(mask, bitorder="little"), samples)


def _mixtures(seed: int, count: int, *, samples: int) -> list[_Question]:
    """Draw mixtures of datasets of up to so many samples."""
    rng = np.random.default_rng(seed)
    drawn: list[_Question] = []
    for _ in range(count):
        number = int(rng.integers(1, 6))
        tables = [_table(rng, int(rng.integers(1, 9)), samples) for _ in range(number)]
        mixture, schedule = _mixture(rng, number, samples)
        skips = [Skips(_skips(rng, table.sample_count)) for table in tables]
        skips = [
            Skips([]) if dataset.choice is Choice.FIXED and len(own) > 9 else own
            for dataset, own in zip(mixture.datasets, skips, strict=True)
        ]
        epoch = int(rng.integers(0, 9))
        fields = _fields(mixture.order, epoch) | _mixture_fields(mixture, schedule)
        fields["datasets"] = [
            own | _dataset_fields(table, skipped)
            for own, table, skipped in zip(fields["datasets"], tables, skips, strict=True)
        ]
        drawn.append((MixtureOrder(mixture, tables, skips=skips), epoch, fields))
    return drawn


def _kept_mixtures(seed: int, count: int, *, samples: int) -> list[_Question]:
    """The same of datasets of some of which filters keep a part."""
    rng = np.random.default_rng(seed)
    drawn: list[_Question] = []
    for _ in range(count):
        number = int(rng.integers(1, 6))
        tables = [_table(rng, int(rng.integers(1, 9)), samples) for _ in range(number)]
        mixture, schedule = _mixture(rng, number, samples)
        epoch = int(rng.integers(0, 9))
        fields = _fields(mixture.order, epoch) | _mixture_fields(mixture, schedule)
        kept: list[Subset | None] = []
        for own, table in zip(fields["datasets"], tables, strict=True):
            own.update(_dataset_fields(table, Skips([])))
            kept.append(None)
            if rng.random() < 0.7:
                ids = _kept(rng, table.sample_count)
                kept[-1] = _kept_of(ids, table.sample_count)
                own["kept"] = ids.tolist()
        left = [
            table if own is None else own.table(table)
            for table, own in zip(tables, kept, strict=True)
        ]
        drawn.append((SubsetMixtureOrder(mixture, left, kept), epoch, fields))
    return drawn


def _mixture(
    rng: np.random.Generator, number: int, samples: int
) -> tuple[MixtureSpec, dict[str, Any] | None]:
    # And its schedule in JSON, which of a linear one holds the knots.
    kind = rng.choice(["amounts", "proportions", "piecewise", "linear"])
    amounts: list[dict[str, Any]] = [{} for _ in range(number)]
    schedule: Schedule | None = None
    fields = None
    if kind == "amounts":
        amounts = [_amount(rng, samples) for _ in range(number)]
    elif kind == "proportions":
        amounts = [{"proportion": weight} for weight in rng.uniform(0, 9, number).tolist()]
    else:
        starts = [0, *np.cumsum(rng.integers(1, 4 * samples, 2)).tolist()]
        weights = (rng.uniform(0, 9, (3, number)) * (rng.random((3, number)) < 0.8)).tolist()
        weights = [[*piece[:-1], piece[-1] + 0.1] for piece in weights]
        make, name = (piecewise, "starts") if kind == "piecewise" else (linear, "knots")
        schedule, fields = make(starts, weights), {name: starts, "weights": weights}
    spec = MixtureSpec(
        tuple(MixtureDataset(f"d{i}", f"{i:032x}", **own) for i, own in enumerate(amounts)),
        _spec(rng),
        Batching(rng.choice([batching.value for batching in Batching])),
        0 if kind == "amounts" else int(rng.integers(0, 3 * samples)),
        schedule,
    )
    return spec, fields


def _amount(rng: np.random.Generator, samples: int) -> dict[str, Any]:
    kind = rng.integers(0, 4)
    if kind == 0:
        return {}
    if kind == 1:
        return {"repeat": float(rng.uniform(0, 3))}
    if kind == 2:
        return {"choose": int(rng.integers(0, samples))}
    granularity = int(rng.integers(1, 20))
    choose = int(rng.integers(20, samples))
    return {"choose": choose, "choice": Choice.FIXED, "granularity": granularity}


def _skips(rng: np.random.Generator, samples: int) -> NDArray[np.int64]:
    # None, some at random, or a stretch that holds whole runs and shards.
    kind = rng.integers(0, 3)
    if kind == 0:
        return np.zeros(0, np.int64)
    if kind == 1:
        return rng.integers(0, samples, samples // 9)
    first, stop = np.sort(rng.integers(0, samples, 2))
    return np.arange(first, stop)


def _fields(spec: OrderSpec, epoch: int) -> dict[str, Any]:
    return {**asdict(spec), "seed": str(spec.seed), "epoch": str(epoch)}


def _dataset_fields(table: ShardTable, skips: Skips) -> dict[str, Any]:
    assert table.block_samples is not None
    return {
        "counts": table.sample_counts.tolist(),
        "bytes": table.raw_bytes.tolist(),
        "blocks": table.block_samples.tolist(),
        "skips": skips.sample_ids.tolist(),
    }


def _mixture_fields(mixture: MixtureSpec, schedule: dict[str, Any] | None) -> dict[str, Any]:
    datasets = [{**asdict(own), "choice": own.choice.value} for own in mixture.datasets]
    return {
        "datasets": datasets,
        "batching": mixture.batching.value,
        "epoch_size": mixture.epoch_size,
        "schedule": schedule,
    }


def _answers(questions: list[dict[str, Any]]) -> list[Any]:
    if _NODE is None:
        pytest.skip("Node is not installed")
    lines = "\n".join(json.dumps(question) for question in questions)
    ran = subprocess.run(
        [_NODE, str(_SECOND)], input=lines, capture_output=True, text=True, check=True, timeout=280
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def _compare(drawn: list[_Question]) -> int:
    compared = 0
    answers = _answers([fields for _, _, fields in drawn])
    for (order, epoch, fields), expected in zip(drawn, answers, strict=True):
        found = order.sample_ids(epoch, 0, order.sample_count)
        assert expected == found.tolist(), fields
        compared += len(found)
    return compared


def test_both_implementations_agree() -> None:
    """Over 40 random specs, every position of an epoch holds the same sample."""
    assert _compare(_orders(1, 40, samples=4000)) > 40_000


def test_both_implementations_agree_on_mixtures() -> None:
    """Over 30 random mixtures too, with skips, lanes, fixed choices and schedules."""
    assert _compare(_mixtures(3, 30, samples=900)) > 20_000


def test_both_implementations_agree_on_filters() -> None:
    """Over 20 random filters of a dataset, and 15 of mixtures."""
    assert _compare(_kept_orders(6, 20, samples=4000)) > 5_000
    assert _compare(_kept_mixtures(7, 15, samples=900)) > 5_000


@pytest.mark.long
def test_both_implementations_agree_on_a_million_positions() -> None:
    """Over 60 larger random specs too, whose steps are permuted by networks."""
    assert _compare(_orders(2, 60, samples=50_000)) > 1_000_000


@pytest.mark.long
def test_both_implementations_agree_on_a_million_positions_of_mixtures() -> None:
    """Over 60 larger random mixtures too."""
    assert _compare(_mixtures(4, 60, samples=15_000)) > 1_000_000


def test_both_implementations_write_the_same_tokens() -> None:
    """Tokens of datasets and mixtures are the same to the byte, digests and checksum included."""
    rng = np.random.default_rng(5)
    questions, expected = [], []
    for transforms in ["", "crop@1", "crop@1,tokens-2.x@2026_11"] * 8:
        mixture, schedule = _mixture(rng, int(rng.integers(1, 40)), 900)
        is_mixture = bool(rng.random() < 0.6)
        skips = Skips(rng.integers(0, 2**40, int(rng.choice([0, 1, 15, 16, 17, 33]))))
        filters: list[dict[str, Any] | None] = [None, None, None]
        kept: list[Subset | None] = [None, None, None]
        for place in range(int(rng.integers(0, 3))):
            ids = _kept(rng, 100 + place)
            kept[place] = _kept_of(ids, 100 + place)
            filters[place] = {"samples": 100 + place, "kept": ids.tolist()}
        digests = ["" if each is None else each.digest for each in kept]
        drawn: dict[str, Any] = {name: int(2 ** rng.uniform(0, 63)) for name in _NUMBERS}
        buckets = 0 if is_mixture else int(rng.choice([0, 2, 64, 65536]))
        lengths = rng.bytes(16).hex() if buckets and rng.random() < 0.5 else ""
        token = Token(
            mixture.fingerprint,
            mixture.order,
            **drawn,
            stages=stages_of(
                mixture=mixture.digest if is_mixture else "",
                filter=joined_digest(digests) if is_mixture else digests[0],
                skips=skips.digest if len(skips) else "",
                buckets=buckets_text(buckets, lengths),
                transforms=transforms,
            ),
        )
        numbers = {name: str(value) for name, value in asdict(token).items() if name in _NUMBERS}
        fields = _mixture_fields(mixture, schedule) if is_mixture else None
        own: dict[str, Any] = {"fingerprint": token.fingerprint, "mixture": fields}
        own |= {"transforms": transforms, "buckets": buckets, "lengths": lengths}
        own |= asdict(mixture.order) | {"seed": str(mixture.order.seed)} | numbers
        wanted = (filters if token.stage("filter") else None) if is_mixture else filters[0]
        own |= {"skips": skips.sample_ids.tolist(), "kept": wanted}
        questions.append({"token": own})
        expected.append(encode_token(token).hex())

    assert expected == _answers(questions)
