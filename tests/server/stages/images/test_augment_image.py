"""Tests of images through a server: the same pixels from whichever, for whomever, after whatever.

How it could give wrong samples, hang or let somebody in, and what holds against each:

1. Other pixels from another server, world size, thread or after a resume: `test_same_pixels`.
2. Other pixels after an upgrade that nobody notices: `test_another_decoder`, `test_other_steps`.
3. Rows that are swapped or left out by threads: `test_rows_are_in_order`.
4. A batch that never ends: `test_row_pool.py`, `test_leaving`.
5. A file that takes all memory or time: `test_bombs`.
6. A damaged file that ends the server or another's stream: `test_damaged`.
7. While a batch is written the next one is begun, which could come before it, take its place, fail
   in its name, or take memory that is not there: `test_what_comes_before_a_failure_stands`,
   `test_without_memory_for_two`, `test_in_a_ring`, `test_leaving`.
"""

from __future__ import annotations

import io
import random
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image

from headrace.client import (
    CenterCrop,
    ColorJitter,
    DecodeImage,
    Normalize,
    NumpyDataset,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    RemoteDataset,
    Resize,
    Ring,
    Selection,
    Transport,
)
from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    StageFailedError,
    TokenSpecChangedError,
)
from headrace.order import decode_token, encode_token, split_images, stages_of
from headrace.server import Server
from headrace.server.stages.transforms.transform_config import transform_configs
from server.stages.images.test_recipe import recipe
from support.bombs import claimed_png, scanned_jpeg
from support.datasets import write_dataset
from support.running import server_of
from support.threads import at_once
from support.waiting import until

_SAMPLES = 48
_CROP = DecodeImage("image", transforms=[RandomResizedCrop(20), RandomHorizontalFlip()])


def _photo(number: int) -> bytes:
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (5, 7, 3), np.uint8)
    size = (40 + number % 30, 30 + number % 17)
    kind = ("JPEG", "PNG", "WEBP", "JPEG")[number % 4]
    file = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, kind)
    return file.getvalue()


def _write(url: str, files: list[bytes | None]) -> str:
    numbers = pa.array(range(len(files)), pa.int64())
    table = pa.table({"image": pa.array(files, pa.binary()), "number": numbers})
    write_dataset(url, table, shard_samples=[len(files)], block_bytes=4096)
    return url


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Photographs; some of them null; a damaged one among them; and bombs."""
    folder = tmp_path_factory.mktemp("photos")
    photos: list[bytes | None] = [_photo(number) for number in range(_SAMPLES)]
    gaps = [None if number % 5 == 0 else file for number, file in enumerate(photos)]
    damaged = [*photos[:20], _photo(0)[:200], *photos[20:]]
    bombs: list[bytes | None] = [claimed_png(60000, 60000), scanned_jpeg(3000, 400)]
    sets = {"photos": photos, "gaps": gaps, "damaged": damaged, "bombs": bombs}
    return {name: _write(str(folder / name), files) for name, files in sets.items()}


@pytest.fixture(scope="module")
def servers(urls: dict[str, str]) -> Iterator[list[Server]]:
    """Two servers of the same data, of one thread and of three."""
    with (
        server_of(urls, stage_threads=1) as first,
        server_of(urls, stage_threads=3) as second,
    ):
        yield [first, second]


def _read(
    server: Server,
    *steps: Any,
    name: str = "photos",
    epochs: int = 1,
    token: bytes | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    options = {"batch_size": 12, "seed": 5, **options}
    dataset = NumpyDataset(server.address, name, stages=steps, epochs=epochs, **options)
    with dataset.resume(token):
        return [dict(arrays) for _ in range(epochs) for arrays in dataset]


def _by_number(batches: list[dict[str, Any]]) -> dict[int, bytes]:
    return {
        int(number): image.tobytes()
        for arrays in batches
        for number, image in zip(arrays["number"], arrays["image"], strict=True)
    }


def _any_transforms(rng: random.Random) -> DecodeImage:
    """Draw a recipe that a server takes."""
    side = rng.randint(1, 24), rng.randint(1, 24)
    low = rng.uniform(0.01, 1)
    flips = [RandomHorizontalFlip(rng.random()), RandomVerticalFlip(rng.random())]
    channels: Any = rng.choice([1, 3, 3])
    to_size: list[Any] = rng.choice(
        [
            [RandomResizedCrop(side, (low, 1.0), (rng.uniform(0.1, 1), rng.uniform(1, 5)))],
            [Resize(rng.randint(1, 40)), CenterCrop(side)],
            [Resize(side)],
            [CenterCrop(side)],
            [],
        ]
    )
    sized: dict[str, Any] = {}
    if not to_size:
        fit = rng.choice(["cover", "contain", "stretch"])
        sized = {"height": side[0], "width": side[1], "fit": fit}
    last: list[Any] = []
    if rng.random() < 0.5:
        ranges = (rng.random(), rng.random(), rng.random(), rng.random() / 2)
        last.append(ColorJitter(*ranges))
    if rng.random() < 0.5:
        dtype: Any = rng.choice(["float16", "bfloat16", "float32"])
        last.append(Normalize((0.4,) * channels, (rng.uniform(0.1, 1),) * channels, dtype))
    if rng.random() < 0.5:
        last.append(RandomErasing(rng.random(), value=rng.randint(0, 255)))
    before: list[Any] = [flip for flip in flips if rng.random() < 0.3]
    after: list[Any] = [flip for flip in flips if rng.random() < 0.3]
    layout: Any = rng.choice(["HWC", "CHW"])
    return DecodeImage(
        "image",
        transforms=[*before, *to_size, *last, *after],
        channels=channels,
        layout=layout,
        **sized,
    )


def _check_same_pixels(servers: list[Server], rng: random.Random) -> None:
    step = _any_transforms(rng)
    first, second = rng.sample(servers, 2)
    whole = _read(first, step)
    expected = _by_number(whole)
    assert len(expected) == _SAMPLES

    for size in rng.sample([2, 3, 4], 2):
        ranks = [
            _read(second, step, batch_size=12 // size, world_size=size, rank=rank)
            for rank in range(size)
        ]
        joined = [batch for batches in zip(*ranks, strict=True) for batch in batches]
        assert expected == _by_number(joined)

    # After a kill: the rest of the run, from the other server, begun at the last token.
    seen = rng.randint(1, 3)
    dataset = NumpyDataset(first.address, "photos", batch_size=12, seed=5, stages=[step], epochs=1)
    with dataset:
        batches = iter(dataset)
        taken = [dict(next(batches)) for _ in range(seen)]
        token = dataset.token
    rest = _read(second, step, token=token)
    assert expected == _by_number([*taken, *rest])
    assert len(taken) + len(rest) == len(whole)


@pytest.mark.parametrize("number", range(6))
def test_same_pixels(servers: list[Server], number: int) -> None:
    """Random transforms: two servers, other world sizes, and after a resume, to the bit."""
    _check_same_pixels(servers, random.Random(number))


@pytest.mark.long
@pytest.mark.parametrize("quarter", range(4))
def test_same_pixels_of_a_thousand(servers: list[Server], quarter: int) -> None:
    """The same for 1,000 random sets of parameters."""
    for number in range(250 * quarter, 250 * (quarter + 1)):
        _check_same_pixels(servers, random.Random(f"many {number}"))


def test_epochs_differ(servers: list[Server]) -> None:
    """A sample's crop is another one in the next epoch, and the same when that is read again."""
    batches = _read(servers[0], _CROP, epochs=2)
    first, second = batches[: len(batches) // 2], batches[len(batches) // 2 :]

    assert _by_number(first).keys() == _by_number(second).keys()
    assert not set(_by_number(first).values()) & set(_by_number(second).values())
    assert _by_number(_read(servers[1], _CROP, epochs=2)[len(first) :]) == _by_number(second)


def test_rows_are_in_order(servers: list[Server]) -> None:
    """Each row has its own image, whichever thread made it: flat images of their number."""
    step = DecodeImage("image", transforms=[Resize((30, 40))])
    for arrays in _read(servers[1], step):
        for number, image in zip(arrays["number"], arrays["image"], strict=True):
            plain = Image.open(io.BytesIO(_photo(int(number)))).convert("RGB")
            wanted = np.asarray(plain.resize((40, 30), Image.Resampling.BILINEAR))
            assert np.abs(wanted.astype(int) - image).max() <= 1


def test_nulls(servers: list[Server]) -> None:
    """Null rows are zeros, and marked; the others are as without them."""
    whole = _by_number(_read(servers[0], DecodeImage("image", transforms=[Resize((8, 8))])))
    step = DecodeImage("image", transforms=[Resize((8, 8))])
    for arrays in _read(servers[0], step, name="gaps"):
        for number, image, valid in zip(
            arrays["number"], arrays["image"], arrays["image.valid"], strict=True
        ):
            assert valid == (number % 5 != 0)
            assert image.tobytes() == (whole[int(number)] if valid else bytes(192))


def test_torch(servers: list[Server]) -> None:
    """A training loop gets tensors of the asked type and layout, and goes on from its state."""
    torch = pytest.importorskip("torch")
    normal = Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2), "float16")
    step = DecodeImage("image", transforms=[RandomResizedCrop(16), normal], layout="CHW")
    dataset = RemoteDataset(servers[0].address, "photos", batch_size=12, stages=[step], epochs=1)
    state = dataset.state_dict()
    images: list[Any] = [batch["image"] for batch in dataset]
    again = RemoteDataset(servers[1].address, "photos", batch_size=12, stages=[step], epochs=1)
    again.load_state_dict(state)

    assert images[0].dtype is torch.float16
    assert images[0].shape == (12, 3, 16, 16)
    assert all(torch.equal(a, b["image"]) for a, b in zip(images, again, strict=True))


def test_damaged(servers: list[Server]) -> None:
    """A damaged file fails its batch and names the sample, which can be skipped; nothing else."""
    pytest.importorskip("torch")
    with pytest.raises(StageFailedError, match=r"sample 20 .*skips=\[20\]") as failure:
        _read(servers[1], _CROP, name="damaged")
    options: dict[str, Any] = {"batch_size": 12, "stages": [_CROP], "epochs": 1}
    source = Selection("damaged", skips=[20])

    assert failure.value.metadata["sample_id"] == "20"
    assert len(list(RemoteDataset(servers[1].address, source, **options))) == _SAMPLES // 12
    assert len(_read(servers[1], _CROP)) == _SAMPLES // 12


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 20])
def test_what_comes_before_a_failure_stands(servers: list[Server], rows: int) -> None:
    """Whatever is begun ahead, all batches before the one that fails are read first."""
    options: dict[str, Any] = {"batch_size": rows, "shuffle": False, "epochs": 1}
    seen: list[int] = []
    with (
        NumpyDataset(servers[1].address, "damaged", stages=[_CROP], **options) as dataset,
        pytest.raises(StageFailedError, match="sample 20 ") as failure,
    ):
        seen += (int(number) for arrays in dataset for number in arrays["number"])

    assert seen == list(range(20 - 20 % rows))
    assert failure.value.metadata["row"] == str(20 % rows)


@pytest.mark.parametrize("times", [1.2, 2, 3, 5])
def test_without_memory_for_two(urls: dict[str, str], servers: list[Server], times: float) -> None:
    """With memory for one batch and little more the same batches come, and those of all streams."""
    step = DecodeImage("image", transforms=[RandomResizedCrop(150)])
    one = 12 * 150 * 150 * 3 + 12 * 4096
    wanted = _by_number(_read(servers[0], step))
    found: list[dict[int, bytes]] = []
    with server_of(urls, stage_threads=2, payload_bytes=int(times * one) + (8 << 20)) as server:
        at_once(lambda _: found.append(_by_number(_read(server, step))), range(3))

    assert found == [wanted] * 3


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
@pytest.mark.parametrize("kept", [0, 2])
def test_in_a_ring(
    urls: dict[str, str], servers: list[Server], tmp_path: Path, slots: int, kept: int
) -> None:
    """Through a ring of few slots, or of none that is free, the batches are the same."""
    step = DecodeImage("image", transforms=[RandomResizedCrop(170)])
    transport = Transport("ring", [Ring(slots * (12 * 170 * 170 * 3 + 4096) + (64 << 10))])
    wanted = _by_number(_read(servers[0], step, epochs=2))
    held: list[Any] = []
    found: list[dict[str, Any]] = []
    with server_of(urls, listen=f"unix:{tmp_path / 'socket'}", stage_threads=2) as server:
        options: dict[str, Any] = {"batch_size": 12, "seed": 5, "epochs": 2}
        with NumpyDataset(
            server.address, "photos", stages=[step], transport=transport, **options
        ) as dataset:
            for _ in range(2):
                for arrays in dataset:
                    held = [*held, arrays][-kept:] if kept else []
                    found.append({name: np.array(each) for name, each in arrays.items()})

    assert len(found) == 2 * _SAMPLES // 12
    assert _by_number(found) == wanted


def test_damaged_in_a_mixture(servers: list[Server]) -> None:
    """Of a mixture the dataset is named too."""
    pytest.importorskip("torch")
    mixed = [("photos", 0.5), ("damaged", 0.5)]
    dataset = RemoteDataset(servers[0].address, mixed, batch_size=12, stages=[_CROP], epochs=2)
    with pytest.raises(StageFailedError, match="sample 20 of the mixture's dataset 1"):
        list(dataset)


def test_bombs(servers: list[Server]) -> None:
    """Files that claim too much are refused by their heads."""
    for row in range(2):
        with pytest.raises(StageFailedError, match=r"at most|bomb"):
            _read(
                servers[0], _CROP, name="bombs", batch_size=1, shuffle=False, rank=row, world_size=2
            )


def _token(server: Server) -> bytes:
    dataset = NumpyDataset(
        server.address, "photos", batch_size=12, seed=5, stages=[_CROP], epochs=1
    )
    with dataset:
        next(iter(dataset))
        assert dataset.token is not None
        return dataset.token


def test_other_steps(servers: list[Server]) -> None:
    """A run goes on with the same transforms alone."""
    token = _token(servers[0])
    other = DecodeImage("image", transforms=[RandomResizedCrop(20), RandomHorizontalFlip(0.4)])
    for steps in ([other], [], [DecodeImage("image", transforms=[Resize((20, 20))])]):
        with pytest.raises(TokenSpecChangedError, match="other stages"):
            _read(servers[0], *steps, token=token)

    assert len(_read(servers[1], _CROP, token=token)) == _SAMPLES // 12 - 1


def _of_another_decoder(token: bytes) -> bytes:
    found = decode_token(token)
    _, digest, decoder = split_images(found.stage("transforms"))
    assert decoder
    stages = stages_of(transforms=f"headrace.images@{digest}-00000000")
    return encode_token(replace(found, stages=stages))


def test_another_decoder(servers: list[Server]) -> None:
    """Another decoder than the token's is refused, or accepted by name; its tokens are its own."""
    pytest.importorskip("torch")
    token = _of_another_decoder(_token(servers[0]))
    with pytest.raises(TokenSpecChangedError, match="allow_decoder_change"):
        _read(servers[0], _CROP, token=token)
    free = replace(_CROP, allow_decoder_change=True)
    options: dict[str, Any] = {"batch_size": 12, "seed": 5, "stages": [free], "epochs": 1}
    dataset = RemoteDataset(servers[0].address, "photos", **options).resume(token)
    batches = list(dataset)

    assert len(batches) == _SAMPLES // 12 - 1
    assert "00000000" not in decode_token(batches[-1].token).stage("transforms")
    with NumpyDataset(servers[0].address, "photos", **options).resume(token) as arrays:
        assert len(list(arrays)) == len(batches)
    with pytest.raises(BadArgumentError, match="allow_decoder_change"):
        DecodeImage("image", 8, 8, allow_decoder_change="yes")  # type: ignore[arg-type] # the claim


def test_no_transform_is_called_so() -> None:
    """No transform of an operator can pass for the server's own."""
    with pytest.raises(ConfigurationError, match="rename"):
        transform_configs(["headrace.images=module:function@1"])


def test_leaving(urls: dict[str, str]) -> None:
    """A server that stops, or a client that goes, leaves no thread that works on."""
    before = threading.active_count()
    with server_of(urls, stage_threads=2, drain_s=0.2) as server:
        large = DecodeImage("image", transforms=[Resize((1500, 1500)), ColorJitter(0.5, 0.5)])
        dataset = NumpyDataset(server.address, "photos", batch_size=12, stages=[large])
        with dataset:
            next(iter(dataset))
    assert until(lambda: threading.active_count() <= before + 1, timeout_s=20)


def test_exact_numbers() -> None:
    """The numbers of a flat image are exactly those that are to be."""
    made = recipe(Resize((2, 2)), Normalize((0.1,) * 3, (0.5,) * 3, "float16"))
    out: NDArray[Any] = np.empty((2, 2, 3), np.float16)
    made.make(np.full((3, 3, 4), 51, np.uint8), {}, 0, out)

    assert out.tobytes() == struct.pack("<e", 0.2) * 12
