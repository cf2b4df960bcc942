"""Tests of masks and boxes that follow their images.

How it could give wrong samples, hang or let somebody in, and what holds against each:

1. A mask or box that goes elsewhere than its image: `test_go_where_pixels_go`, with transforms of
   all kinds, formats and channel orders.
2. Another row's mask, box or label, also where some are null, left out or of damaged images:
   `test_go_where_pixels_go`, `test_nulls`, `test_with_damage`.
3. Other numbers for other ranks: `test_the_same_for_all_ranks`.
4. A mask that takes all memory, boxes that are no boxes: `test_wrong_data`.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image

from headrace.client import (
    Boxes,
    CenterCrop,
    ColorJitter,
    CutMix,
    DecodeImage,
    Normalize,
    NumpyDataset,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from headrace.errors import BadArgumentError, StageFailedError
from headrace.server import Server
from support.bombs import claimed_png
from support.datasets import write_dataset
from support.running import server_of

_SAMPLES = 40
_FORMATS: tuple[Any, ...] = ("XYXY", "XYWH", "CXCYWH")


def _file(pixels: NDArray[np.uint8], orientation: int = 1, mode: str | None = None) -> bytes:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(pixels)
    if mode == "P":
        image = image.convert("L")
        image.putpalette([n * 7 % 256 for n in range(768)])
        image = Image.fromarray(pixels).convert("L")
        palette = Image.new("P", image.size)
        palette.putdata(list(pixels.reshape(-1).tolist()))
        palette.putpalette([n * 7 % 256 for n in range(768)])
        image = palette
    image.save(file, "PNG", exif=exif)
    return file.getvalue()


def _turned(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return pixels as they are stored, so that EXIF turns them upright again."""
    return np.ascontiguousarray(pixels.T[::-1]) if orientation == 6 else pixels


def _sample(number: int) -> dict[str, Any]:
    """Return a grey image with two rectangles, a mask of the same numbers, and their boxes."""
    rng = np.random.default_rng(number)
    height, width = int(rng.integers(40, 60)), int(rng.integers(40, 60))
    pixels = np.zeros((height, width), np.uint8)
    boxes = []
    for value in (100, 200):
        left, top = int(rng.integers(0, width - 12)), int(rng.integers(0, height - 12))
        right, bottom = int(rng.integers(left + 6, width)), int(rng.integers(top + 6, height))
        pixels[top:bottom, left:right] = value
        boxes.append([left, top, right, bottom])
    orientation = 6 if number % 4 == 1 else 1
    xyxy = np.array(boxes, np.float32)
    sizes = xyxy[:, 2:] - xyxy[:, :2]
    return {
        "image": _file(_turned(pixels, orientation), orientation),
        "mask": _file(pixels, mode="P" if number % 2 else None),
        "second": _file(255 - pixels),
        "XYXY": xyxy.reshape(-1).tolist(),
        "XYWH": np.concatenate([xyxy[:, :2], sizes], axis=1).reshape(-1).tolist(),
        "CXCYWH": np.concatenate([xyxy[:, :2] + sizes / 2, sizes], 1).reshape(-1).tolist(),
        "label": [2 * number, 2 * number + 1],
        "number": number,
    }


def _write(url: str, rows: list[dict[str, Any]]) -> str:
    types = {
        **dict.fromkeys(("image", "mask", "second"), pa.binary()),
        **dict.fromkeys(("XYXY", "XYWH", "CXCYWH"), pa.list_(pa.float32())),
        "label": pa.list_(pa.int64()),
        "number": pa.int64(),
    }
    schema = pa.schema(list(types.items()))
    write_dataset(url, pa.Table.from_pylist(rows, schema), shard_samples=[len(rows)])
    return url


def _wrong() -> dict[str, list[dict[str, Any]]]:
    good = [_sample(number) for number in range(4)]
    return {
        "size": [*good, {**_sample(4), "mask": _sample(5)["mask"]}],
        "colours": [*good, {**_sample(4), "mask": _file(np.zeros((44, 50, 3), np.uint8))}],
        "bomb": [*good, {**_sample(4), "mask": claimed_png(60000, 60000)}],
        "text": [*good, {**_sample(4), "mask": b"no mask"}],
        "three": [*good, {**_sample(4), "XYXY": [1.0, 2.0, 3.0]}],
        "nan": [*good, {**_sample(4), "XYXY": [1.0, 2.0, 3.0, float("nan")] * 2}],
        "labels": [*good, {**_sample(4), "label": [1]}],
        "image": [*good, {**_sample(4), "image": b"nothing"}],
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Drawings with masks and boxes; with nulls; and with what cannot be."""
    folder = tmp_path_factory.mktemp("d")
    samples = [_sample(number) for number in range(_SAMPLES)]
    gaps = [
        {**row, **{name: None for at, name in enumerate(("image", "mask", "XYXY")) if n % 3 == at}}
        for n, row in enumerate(samples)
    ]
    sets = {"d": samples, "gaps": gaps, **_wrong()}
    urls = {name: _write(str(folder / name), rows) for name, rows in sets.items()}
    with server_of(urls) as running:
        yield running


def _read(server: Server, step: DecodeImage, **options: Any) -> list[dict[str, NDArray[Any]]]:
    given: dict[str, Any] = {"batch_size": 8, "seed": 5, "epochs": 1, **options}
    with NumpyDataset(server.address, given.pop("name", "d"), stages=[step], **given) as dataset:
        return [dict(arrays) for arrays in dataset]


def _any_transforms(rng: random.Random) -> list[Any]:
    side = rng.randint(10, 80), rng.randint(10, 80)
    flips = [RandomHorizontalFlip(rng.random()), RandomVerticalFlip(rng.random())]
    to_size: list[Any] = rng.choice(
        [
            [RandomResizedCrop(side, (0.2, 1.0))],
            [Resize(rng.randint(10, 70)), CenterCrop(side)],
            [Resize(side)],
            [CenterCrop(side)],
        ]
    )
    last = [ColorJitter(), RandomErasing(0.0)]
    before: list[Any] = [flip for flip in flips if rng.random() < 0.5]
    after: list[Any] = [flip for flip in flips if rng.random() < 0.5]
    return [*before, *to_size, *[each for each in last if rng.random() < 0.5], *after]


@pytest.mark.parametrize("number", range(16))
def test_go_where_pixels_go(server: Server, number: int) -> None:
    """The mask of an image that is its own mask is the image, and boxes are what they box."""
    rng = random.Random(number)
    transforms, kind = _any_transforms(rng), _FORMATS[number % 3]
    layout: Any = rng.choice(["HWC", "CHW"])
    step = DecodeImage(
        "image",
        transforms=transforms,
        channels=1,
        layout=layout,
        masks=["mask", "second"],
        boxes=Boxes(kind, kind, "label", min_size=1),
    )
    _check_follows(server, step, kind)


@pytest.mark.parametrize("fit", ["cover", "contain", "stretch"])
@pytest.mark.parametrize("size", [(30, 50), (64, 24), (70, 70)])
def test_go_where_an_image_is_fitted(server: Server, fit: Any, size: tuple[int, int]) -> None:
    """The same where the stage has a height and a width."""
    boxes = Boxes("XYXY", "XYXY", "label", min_size=1)
    step = DecodeImage("image", *size, channels=1, fit=fit, masks=["mask", "second"], boxes=boxes)
    _check_follows(server, step, "XYXY")


def _check_follows(server: Server, step: DecodeImage, kind: str) -> None:
    for arrays in _read(server, step):
        images = arrays["image"][:, 0] if step.layout == "CHW" else arrays["image"][..., 0]
        assert arrays["mask"].dtype == np.uint8
        assert arrays["mask"].shape == images.shape
        for row in range(len(images)):
            mask = arrays["mask"][row]
            # Linear and nearest differ at edges alone.
            flat = [abs(images[row].astype(int) - value) <= 1 for value in (0, 100, 200)]
            near = np.select(flat, [0, 100, 200], 255)
            assert set(np.unique(mask)) <= {0, 100, 200}
            assert (near[near != 255] == mask[near != 255]).mean() > 0.96
            inside = arrays["second"][row] != 0
            assert (arrays["second"][row][inside] == 255 - mask[inside]).all()
            boxes = _corners(arrays[kind][row], kind)
            _check_boxes(boxes, arrays["label"][row], mask, arrays["number"][row])


def _corners(numbers: NDArray[Any], kind: str) -> NDArray[Any]:
    assert numbers.dtype == np.float32
    boxes = numbers.reshape(-1, 4).astype(float)
    if kind == "CXCYWH":
        boxes[:, :2] -= boxes[:, 2:] / 2
    if kind != "XYXY":
        boxes[:, 2:] += boxes[:, :2]
    return boxes


def _check_boxes(boxes: NDArray[Any], labels: NDArray[Any], mask: NDArray[Any], own: int) -> None:
    assert len(boxes) == len(labels)
    assert set(labels.tolist()) <= {2 * own, 2 * own + 1}
    height, width = mask.shape
    assert (boxes >= -1e-4).all()
    assert (boxes[:, [0, 2]] <= width + 1e-4).all()
    assert (boxes[:, [1, 3]] <= height + 1e-4).all()
    assert (boxes[:, 2:] - boxes[:, :2] >= 1 - 1e-4).all()
    # The second rectangle lies upon the first.
    for left, top, right, bottom in boxes[labels % 2 == 1]:
        rows, columns = np.nonzero(mask == 200)
        if rows.size:
            found = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            scale = 2 + max(width, height) / 20
            assert np.abs(np.array(found) - (left, top, right, bottom)).max() <= scale


def test_min_size(server: Server) -> None:
    """Boxes smaller than asked for are left out with their labels; with 0 all stay."""
    crop = [RandomResizedCrop(40, (0.1, 0.3))]
    counts = []
    for least in (0, 1, 12):
        boxes = Boxes("XYXY", labels=["label"], min_size=least)
        found = _read(server, DecodeImage("image", transforms=crop, boxes=[boxes]))
        sizes = [
            np.diff(row.reshape(-1, 2, 2), axis=1) for arrays in found for row in arrays["XYXY"]
        ]
        assert min(each.min(initial=99) for each in sizes) >= least
        counts.append([len(row) for arrays in found for row in arrays["label"]])
    assert counts[0] == [2] * _SAMPLES
    assert sum(counts[0]) > sum(counts[1]) > sum(counts[2]) > 0


def test_nulls(server: Server) -> None:
    """A null image has a mask of zeros and no boxes; null masks and boxes change nothing else."""
    step = DecodeImage(
        "image", transforms=[Resize((20, 20))], masks="mask", boxes=Boxes("XYXY", labels="label")
    )
    whole = {int(n): a for b in _read(server, step) for n, a in _rows(b)}
    for arrays in _read(server, step, name="gaps"):
        for number, row in _rows(arrays):
            image, mask, boxes, labels = row
            wanted = whole[number]
            assert not image.any() if number % 3 == 0 else np.array_equal(image, wanted[0])
            assert not mask.any() if number % 3 < 2 else np.array_equal(mask, wanted[1])
            if number % 3 == 1:
                assert np.array_equal(boxes, wanted[2])
                assert np.array_equal(labels, wanted[3])


def _rows(arrays: dict[str, NDArray[Any]]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for at, number in enumerate(arrays["number"].tolist()):
        yield number, tuple(arrays[name][at] for name in ("image", "mask", "XYXY", "label"))


def test_the_same_for_all_ranks(server: Server) -> None:
    """Masks, boxes and labels of each sample are those of one rank."""
    step = DecodeImage(
        "image",
        transforms=[RandomResizedCrop(20), RandomHorizontalFlip()],
        masks="mask",
        boxes=Boxes("XYXY", labels="label"),
    )
    runs = []
    for world in (1, 2, 4):
        found: dict[int, list[bytes]] = {}
        for rank in range(world):
            for arrays in _read(server, step, rank=rank, world_size=world, batch_size=8 // world):
                found |= {n: [each.tobytes() for each in row] for n, row in _rows(arrays)}
        runs.append(found)

    assert len(runs[0]) == _SAMPLES
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("size", "the mask has .* but its image"),
        ("colours", "the mask (has|is)"),
        ("bomb", "the most|bomb"),
        ("text", "cannot identify"),
        ("three", "3 numbers; each takes 4"),
        ("nan", "none of them NaN"),
        ("labels", "2 boxes .* and 1 labels"),
    ],
)
def test_wrong_data(server: Server, name: str, why: str) -> None:
    """What cannot be names the sample; with `on_error` another one stands in for it."""
    options: dict[str, Any] = {
        "transforms": [Resize((20, 20))],
        "masks": "mask",
        "boxes": Boxes("XYXY", labels="label"),
    }
    with pytest.raises(StageFailedError, match=rf"{why}.*sample 4 "):
        _read(server, DecodeImage("image", **options), name=name, batch_size=5, shuffle=False)
    skip = DecodeImage("image", on_error="skip", **options)
    (arrays,) = _read(server, skip, name=name, batch_size=5, shuffle=False)
    rows = dict(_rows(arrays))

    assert sorted(rows) == [0, 1, 2, 3]
    assert arrays["number"].tolist()[:4] == [0, 1, 2, 3]


def test_refused(server: Server) -> None:
    """What cannot follow an image is refused when it is asked for, or when the stream starts."""
    to_size: list[Any] = [Resize((20, 20))]
    for options, why in (
        ({"masks": "number"}, "column 'number' is tensor; it must be bytes"),
        ({"masks": "none"}, "there is no column 'none'"),
        ({"masks": ["mask", "mask"]}, "name each column"),
        ({"masks": "image"}, "name each column"),
        ({"boxes": Boxes("number")}, "it must be ragged"),
        ({"boxes": Boxes("XYXY", labels="number")}, "it must be ragged"),
        ({"boxes": [Boxes("XYXY"), Boxes("XYXY")]}, "name each column"),
    ):
        with pytest.raises(BadArgumentError, match=why):
            _read(server, DecodeImage("image", transforms=to_size, **options))
    step = DecodeImage("image", transforms=to_size, masks="mask")
    with (
        NumpyDataset(
            server.address, "d", batch_size=8, stages=[step, CutMix("image", "number", 1.0, 99)]
        ) as dataset,
        pytest.raises(BadArgumentError, match="cannot be mixed"),
    ):
        next(iter(dataset))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"transforms": [Resize((9, 9))], "masks": 3}, r"DecodeImage\.masks"),
        ({"transforms": [Resize((9, 9))], "boxes": "b"}, r"DecodeImage\.boxes"),
    ],
)
def test_no_masks_or_boxes(options: dict[str, Any], why: str) -> None:
    """Arguments of other kinds are refused where they are given."""
    with pytest.raises(BadArgumentError, match=why):
        DecodeImage("image", **options)
    for wrong in ({"format": "YXYX"}, {"min_size": -1}, {"labels": 3}):
        with pytest.raises(BadArgumentError, match=r"Boxes\."):
            Boxes("b", **wrong)


def test_colours_leave_masks_alone(server: Server) -> None:
    """What changes pixels changes no mask."""
    crop: list[Any] = [RandomResizedCrop(20)]
    normal = Normalize((0.5,) * 3, (0.5,) * 3, "float16")
    plain = _read(server, DecodeImage("image", transforms=crop, masks="mask"))
    changed = [*crop, ColorJitter(0.9, 0.9), normal, RandomErasing(1.0)]
    found = _read(server, DecodeImage("image", transforms=changed, masks="mask"))

    for one, other in zip(plain, found, strict=True):
        assert np.array_equal(one["mask"], other["mask"])
