"""Tests of images that are mixed with the next ones of their global batch.

How it could give wrong samples, hang or let somebody in, and what holds against each:

1. A partner that follows the world size, dealing, the end of the epoch or a resume:
   `test_the_same_for_all_ranks`, `test_a_resume_goes_on_alike`.
2. Another share or box for each rank: the same tests.
3. Labels mixed otherwise than their images: `test_is_what_is_documented`.
4. A sample that counts as the rank's though it is only its partner: `test_counts_are_its_own`.
5. Indices outside of the classes that write elsewhere, or a number of classes that takes all
   memory: `test_labels_of_no_class`, `test_refused`.
6. A damaged partner whose error names another sample: `test_a_damaged_partner_is_named`.
7. A token taken for another mixing: `test_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from headrace.cli.stored.row_counter import row_counter
from headrace.client import (
    Cast,
    CutMix,
    DecodeImage,
    MixUp,
    Normalize,
    NumpyDataset,
    OneHot,
    Order,
    Pad,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RemoteDataset,
    Transform,
)
from headrace.errors import BadArgumentError, StageFailedError, TokenSpecChangedError
from headrace.order import sample_keys, transform_keys, uniform_draws
from headrace.server import Server
from headrace.server.plan.planned_batches import positions_of
from headrace.server.stages.images.mix_images import partners_of
from headrace.server.stages.images.mixing import DRAW_COUNT, Mix, cut_mix, mix_up
from headrace.storage import RowOptions, index_packing, with_classes
from support.datasets import write_dataset
from support.images import noise_bytes
from support.rank_batches import GLOBAL_BATCH, SEED, rank_batches
from support.running import server_of

_SAMPLES, _CLASSES = 50, 7
_LENGTHS = np.random.default_rng(5).integers(1, 200, _SAMPLES)
_NORMAL = Normalize((0.4,) * 3, (0.3,) * 3)
_CROP = DecodeImage("image", transforms=[RandomResizedCrop(9), RandomHorizontalFlip(), _NORMAL])
_BYTES = DecodeImage("image", transforms=[RandomResizedCrop(9)], layout="CHW")
_MIXES: dict[str, list[Any]] = {
    "mix_up": [_CROP, MixUp("image", "label", alpha=0.4)],
    "cut_mix": [_BYTES, CutMix("image", "label")],
}


def _table(count: int, *, damaged: int = -1) -> pa.Table:
    files = [b"nothing" if number == damaged else noise_bytes(number) for number in range(count)]
    label = with_classes(pa.field("label", pa.int32()), [f"c{at}" for at in range(_CLASSES)])
    columns: dict[str, Any] = {
        "image": pa.array(files, pa.binary()),
        "label": pa.array([number % _CLASSES for number in range(count)], pa.int32()),
        "number": pa.array(range(count), pa.int64()),
        "wrong": pa.array([number - 3 for number in range(count)], pa.int64()),
        "gap": pa.array([number % 5 or None for number in range(count)], pa.int64()),
        "tokens": pa.array([[1] * length for length in _LENGTHS[:count]], pa.list_(pa.int32())),
    }
    fields = [
        label if name == "label" else pa.field(name, each.type) for name, each in columns.items()
    ]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Small photographs of seven classes; and fewer of them, one of which is damaged."""
    folder = tmp_path_factory.mktemp("d")
    urls = {"d": str(folder / "d"), "damaged": str(folder / "damaged")}
    write_dataset(urls["d"], _table(_SAMPLES), shard_samples=[20, 30], block_bytes=2048)
    write_dataset(urls["damaged"], _table(8, damaged=5), shard_samples=[8])
    index_packing(urls["d"], RowOptions(256), count_rows=row_counter())
    with server_of(urls) as running:
        yield running


def _read(
    server: Server, steps: list[Any], *, rank: int = 0, world: int = 1, **options: Any
) -> list[dict[str, NDArray[Any]]]:
    columns, order = ["image", "label", "number"], Order(with_ids=True)
    given = {"name": "d", "columns": columns, "order": order, **options}
    batches = []
    for batch in rank_batches(server, stages=steps, rank=rank, world=world, **given):
        assert batch.sample_ids is not None
        arrays = {name: _array(batch[name]) for name in batch}
        assert batch.sample_ids.tolist() == arrays["number"].tolist()
        batches.append(arrays)
    return batches


def _flat(values: NDArray[Any]) -> list[Any]:
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in values.tolist()]


def _array(values: Any) -> NDArray[Any]:
    return values.numpy() if isinstance(values, torch.Tensor) else np.array(values, object)


def _by_sample(parts: list[list[dict[str, NDArray[Any]]]]) -> list[dict[int, tuple[bytes, bytes]]]:
    """Return the global batches of the ranks' batches: images and labels by sample."""
    joined: list[dict[int, tuple[bytes, bytes]]] = []
    for own in zip(*parts, strict=True):
        joined.append({})
        for arrays in own:
            for at, number in enumerate(arrays["number"].tolist()):
                made = arrays["image"][at].tobytes(), arrays["label"][at].tobytes()
                # A pad is the same once more.
                assert joined[-1].setdefault(number, made) == made
    return joined


@pytest.mark.parametrize("kind", _MIXES)
@pytest.mark.parametrize("end", ["drop_last", "uneven", "pad"])
@pytest.mark.parametrize("world", [2, 3, 4, 12])
def test_the_same_for_all_ranks(server: Server, kind: str, end: str, world: int) -> None:
    """Images and labels of each global batch are those of one rank, dealt in order and evenly."""
    whole = _by_sample([_read(server, _MIXES[kind], end=end)])
    for deal in (None, "balanced"):
        parts = [
            _read(server, _MIXES[kind], end=end, rank=rank, world=world, deal=deal)
            for rank in range(world)
        ]
        assert whole == _by_sample(parts)


@pytest.mark.parametrize("kind", _MIXES)
def test_a_resume_goes_on_alike(server: Server, kind: str) -> None:
    """From a token, on another number of ranks."""
    whole = _by_sample([_read(server, _MIXES[kind])])
    options: dict[str, Any] = {"batch_size": 6, "seed": SEED, "end": "uneven", "epochs": 2}
    with NumpyDataset(
        server.address, "d", stages=_MIXES[kind], rank=1, world_size=2, **options
    ) as dataset:
        batches = iter(dataset)
        for _ in range(3):
            next(batches)
        token = dataset.token
    rest = [_read(server, _MIXES[kind], rank=rank, world=3, token=token) for rank in range(3)]

    assert whole[3:] == _by_sample(rest)


def _documented(
    plain: list[dict[str, NDArray[Any]]], kind: str, alpha: float, place: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Mix the batches of one rank as docs/augmentation.md says."""
    position = 0
    for arrays in plain:
        key = transform_keys(sample_keys(SEED, 0, np.array([position])), place, 0)
        draws = uniform_draws(key, DRAW_COUNT)[0].tolist()
        mix = mix_up(alpha, draws) if kind == "mix_up" else cut_mix(alpha, 9, 9, draws)
        share = np.float32(mix.share)
        images, nexts = arrays["image"], np.roll(arrays["image"], -1, axis=0)
        labels = np.eye(_CLASSES, dtype=np.float32)[arrays["label"]]
        mixed = labels * share + np.roll(labels, -1, axis=0) * np.float32(1 - mix.share)
        if mix.box is None:
            yield images * share + nexts * np.float32(1 - mix.share), mixed
        else:
            top, left, bottom, right = mix.box
            made = images.copy()
            made[:, :, top:bottom, left:right] = nexts[:, :, top:bottom, left:right]
            yield made, mixed
        position += len(images)


@pytest.mark.parametrize("kind", _MIXES)
def test_is_what_is_documented(server: Server, kind: str) -> None:
    """What comes is the unmixed batch mixed by the page's formulas, to the bit."""
    steps = _MIXES[kind]
    plain = _read(server, steps[:1], epochs=1)
    found = _read(server, steps, epochs=1)
    for (images, labels), arrays in zip(
        _documented(plain, kind, steps[1].alpha, 1), found, strict=True
    ):
        assert images.tobytes() == arrays["image"].tobytes()
        assert labels.tobytes() == arrays["label"].tobytes()
    assert len({arrays["label"].max() for arrays in found}) > 1


def test_counts_are_its_own(server: Server) -> None:
    """Ids, counts and the other columns are the rank's samples alone, as without mixing."""
    for rank in range(3):
        plain = _read(server, [_CROP], rank=rank, world=3, columns=())
        mixed = _read(server, _MIXES["mix_up"], rank=rank, world=3, columns=())
        for one, other in zip(plain, mixed, strict=True):
            assert one.keys() == other.keys()
            for name in one.keys() - {"image", "label"}:
                assert _flat(one[name]) == _flat(other[name])
            assert len(one["image"]) == len(other["image"]) == len(other["label"])


def test_steps_before(server: Server) -> None:
    """Casts, pads and vectors before the images are made are of the rank's own rows too."""
    steps = [OneHot("label"), Pad("tokens", 200), Cast("number", "float32"), *_MIXES["mix_up"]]
    found = _read(server, steps, rank=1, world=2, columns=["image", "label", "number", "tokens"])
    wanted = _read(server, _MIXES["mix_up"], rank=1, world=2)

    for one, other in zip(found, wanted, strict=True):
        # Another place in the request draws other shares; the classes that are mixed are the same.
        assert np.array_equal(one["label"] != 0, other["label"] != 0)
        assert np.array_equal(one["number"], other["number"].astype(np.float32))
        assert one["tokens.length"].tolist() == _LENGTHS[other["number"]].tolist()


def test_ranks_without_rows(server: Server) -> None:
    """Of a last batch smaller than the world some ranks get none, and no step minds."""
    for steps in (_MIXES["cut_mix"], [_BYTES, Cast("image", "float32")]):
        last = _read(server, steps, rank=0, world=12)[4]
        assert last["image"].shape[0] == last["label"].shape[0] == 0


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("side", [9, 224])
def test_float16(server: Server, side: int, layout: Any) -> None:
    """Half floats are mixed in single ones and rounded once, also in a batch of two messages."""
    normal = Normalize((0.4,) * 3, (0.3,) * 3, "float16")
    decode = DecodeImage("image", transforms=[RandomResizedCrop(side), normal], layout=layout)
    steps = [decode, MixUp("image", "label", alpha=3.5)]
    plain = _read(server, steps[:1], epochs=1)
    found = _read(server, steps, epochs=1)
    for (images, _), arrays in zip(_documented(plain, "mix_up", 3.5, 1), found, strict=True):
        assert images.astype(np.float16).tobytes() == arrays["image"].tobytes()


def test_one_hot(server: Server) -> None:
    """Class indices become vectors, as many numbers as the dataset names classes."""
    found = _read(server, [OneHot("label")], columns=["label", "number"])
    wider = _read(server, [OneHot("label", 9)], columns=["label", "number"])
    for arrays, more in zip(found, wider, strict=True):
        wanted = np.eye(9, dtype=np.float32)[arrays["number"] % _CLASSES]
        assert arrays["label"].dtype == np.float32
        assert np.array_equal(wanted[:, :_CLASSES], arrays["label"])
        assert np.array_equal(wanted, more["label"])


def test_nulls_are_zeros(server: Server) -> None:
    """A null index is a vector of zeros, marked as null."""
    for arrays in _read(server, [OneHot("gap", 50)], columns=["gap", "number"]):
        is_there = arrays["number"] % 5 != 0
        assert np.array_equal(is_there, arrays["gap.valid"])
        assert np.array_equal(is_there, arrays["gap"].sum(axis=1) == 1)


@pytest.mark.parametrize(
    "steps", [[OneHot("wrong", 60)], [_CROP, MixUp("image", "wrong", num_classes=60)]]
)
def test_labels_of_no_class(server: Server, steps: list[Any]) -> None:
    """An index that is none of a class names its sample, and what was expected."""
    with pytest.raises(StageFailedError, match=r"is -\d; it must be in \[0, 60\).*sample [012] "):
        _read(server, steps, columns=["image", "wrong"], shuffle=False)


def test_a_damaged_partner_is_named(server: Server) -> None:
    """Also the rank that only mixes it in says which sample cannot be decoded."""
    options: dict[str, Any] = {"name": "damaged", "shuffle": False, "epochs": 1}
    for rank in (1, 2):
        with pytest.raises(StageFailedError, match=r"sample 5 .*skips=\[5\]"):
            _read(server, _MIXES["mix_up"], rank=rank, world=3, **options)


_REFUSED: dict[str, tuple[list[Any], str]] = {
    "alone": ([MixUp("image", "label")], "must be the last stage, right after the DecodeImage"),
    "not last": ([*_MIXES["mix_up"], Cast("number", "int32")], "must be the last stage"),
    "twice": ([*_MIXES["mix_up"], CutMix("image", "label")], "must be the last stage"),
    "other column": ([_CROP, MixUp("number", "label")], "must be the last stage"),
    "between": ([_CROP, OneHot("label"), MixUp("image", "label")], "must be the last stage"),
    "behind a transform": ([Transform("none"), MixUp("image", "label")], "not registered|none"),
    "bytes": ([_BYTES, MixUp("image", "label")], "are uint8.*end their transforms with Normalize"),
    "no classes": ([_CROP, MixUp("image", "number")], "has no class names for column 'number'"),
    "too many": ([_CROP, MixUp("image", "tokens")], "ragged; it must be tensor"),
    "no labels": ([_CROP, MixUp("image", "nothing")], "there is no column 'nothing'"),
    "its own": ([_CROP, MixUp("image", "image")], "it must be a column of labels"),
    "ids": ([_CROP, MixUp("image", "headrace.sample_id")], "it must be a column of labels"),
    "vectors twice": ([OneHot("label"), OneHot("label")], "must have one integer per row"),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_refused(server: Server, case: str) -> None:
    """What cannot be mixed is refused when the stream starts, with what to do."""
    steps, why = _REFUSED[case]
    with pytest.raises(BadArgumentError, match=why):
        _read(server, steps, columns=())


@pytest.mark.parametrize("alpha", [0, -1, 0.001, 101, float("nan"), "much"])
def test_no_alpha(alpha: Any) -> None:
    """An alpha that no distribution has is refused where it is given."""
    with pytest.raises(BadArgumentError, match=r"MixUp\.alpha"):
        MixUp("image", "label", alpha=alpha)
    with pytest.raises(BadArgumentError, match=r"CutMix\.num_classes"):
        CutMix("image", "label", num_classes=0)


def test_tokens(server: Server) -> None:
    """A run goes on with the same mixing alone."""
    with NumpyDataset(
        server.address, "d", batch_size=GLOBAL_BATCH, seed=SEED, stages=_MIXES["mix_up"]
    ) as dataset:
        next(iter(dataset))
        token = dataset.token
    others: list[list[Any]] = [[], [MixUp("image", "label")], [CutMix("image", "label", 0.4)]]
    for steps in ([_CROP, *other] for other in others):
        with pytest.raises(TokenSpecChangedError, match="other stages"):
            _read(server, steps, token=token)
    assert len(_read(server, _MIXES["mix_up"], token=token, epochs=1)) == 4


def test_a_state_of_before_the_first_batch(server: Server) -> None:
    """The client says the same of the steps as the server does."""
    options: dict[str, Any] = {"batch_size": GLOBAL_BATCH, "seed": SEED, "epochs": 1}
    dataset = RemoteDataset(server.address, "d", stages=_MIXES["cut_mix"], **options)
    state = dataset.state_dict()
    again = RemoteDataset(server.address, "d", stages=_MIXES["cut_mix"], **options)
    again.load_state_dict(state)

    assert len(list(again)) == _SAMPLES // GLOBAL_BATCH


def test_partners_of_a_rank() -> None:
    """A rank whose samples follow one another needs one more, and one with all of them none."""
    from headrace.order import EndMode, EpochPlan  # noqa: PLC0415 - only here

    plan = EpochPlan(50, 0, 12, EndMode.PAD)
    for world in (1, 2, 3, 4, 12):
        for index in range(plan.batch_count):
            for rank in range(world):
                part = plan.batch(index, rank=rank, world_size=world)
                found = partners_of(part, positions_of(part))
                rows = np.concatenate([positions_of(part), found.positions])
                nexts = (positions_of(part) - part.position + 1) % part.global_sample_count
                assert np.array_equal(rows[found.rows] - part.position, nexts)
                assert len(found.positions) <= (world > 1) + (index == 4)


def _draws(seed: int) -> list[list[float]]:
    keys = transform_keys(sample_keys(seed, 0, np.arange(4000)), 1, 0)
    drawn: list[list[float]] = uniform_draws(keys, DRAW_COUNT).tolist()
    return drawn


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.8, 1.0, 1.5, 8.0, 100.0])
def test_shares_are_spread_as_they_should(alpha: float) -> None:
    """Shares have the mean and the deviation of the beta distribution."""
    shares = np.array([mix_up(alpha, row).share for row in _draws(3)])
    deviation = (4 * (2 * alpha + 1)) ** -0.5

    assert shares.min() >= 0
    assert shares.max() <= 1
    assert abs(shares.mean() - 0.5) < 4 * deviation / 4000**0.5
    assert shares.std() == pytest.approx(deviation, rel=0.05)


def test_golden() -> None:
    """The shares and boxes of some draws; another one is another version of the page."""
    row = _draws(1)[0]
    shares = [mix_up(alpha, row).share.hex() for alpha in (0.2, 1.0, 4.0)]
    mixes = [cut_mix(alpha, 224, 160, row) for alpha in (0.2, 1.0, 4.0)]

    assert _SHARES == shares
    assert _CUTS == mixes


_SHARES = ["0x1.ffff5b2cb07dcp-1", "0x1.22c25a6a667c5p-1", "0x1.1175dfacd3ac9p-1"]
_CUTS = [
    Mix(1.0, (44, 2, 44, 2)),
    Mix(0.8237165178571428, (0, 0, 117, 54)),
    Mix(0.8125, (0, 0, 120, 56)),
]
