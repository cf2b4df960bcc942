"""Tests of images of bfloat16, which NumPy does not have.

How it could give wrong numbers, and what holds against each: halves of other bytes, or rounded
otherwise than torch rounds (`test_is_what_torch_rounds`, over gRPC and a ring, in worker processes
and as arrays); steps that take the bits for numbers (`test_erased_and_mixed`, `test_refused`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from headrace.client import (
    Cast,
    DecodeImage,
    MixUp,
    Normalize,
    NumpyDataset,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RemoteDataset,
    Transport,
)
from headrace.errors import BadArgumentError
from headrace.server import Server
from headrace.server.stages.images.bfloat16 import bfloat16_bits, from_bfloat16
from support.datasets import write_dataset
from support.images import image_bytes
from support.running import server_of

_SAMPLES = 24
_MIX = MixUp("image", "number", num_classes=_SAMPLES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Small images on a socket of this host."""
    folder = tmp_path_factory.mktemp("d")
    files = [image_bytes("png", number=10 * number, side=12) for number in range(_SAMPLES)]
    table = pa.table({"image": pa.array(files, pa.binary()), "number": list(range(_SAMPLES))})
    write_dataset(str(folder / "d"), table, shard_samples=[_SAMPLES])
    listen = f"unix:{folder / 'socket'}"
    with server_of({"d": str(folder / "d")}, listen=listen) as running:
        yield running


def _steps(dtype: Any, *last: Any, layout: Any = "CHW") -> list[Any]:
    normal = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), dtype)
    transforms = [RandomResizedCrop(9), normal, *last]
    return [DecodeImage("image", transforms=transforms, layout=layout)]


def _read(server: Server, steps: list[Any], **options: Any) -> list[torch.Tensor]:
    dataset = RemoteDataset(
        server.address, "d", batch_size=8, seed=3, stages=steps, epochs=1, **options
    )
    return [_tensor(batch["image"]) for batch in dataset]


def _tensor(values: Any) -> torch.Tensor:
    assert isinstance(values, torch.Tensor)
    return values


@pytest.mark.parametrize("transport", ["ring", "grpc"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_is_what_torch_rounds(server: Server, transport: Any, layout: Any) -> None:
    """Numbers are those of float32, rounded as torch rounds them."""
    wanted = _read(server, _steps("float32", layout=layout))
    found = _read(server, _steps("bfloat16", layout=layout), transport=Transport(transport))

    assert all(each.dtype is torch.bfloat16 for each in found)
    assert all(torch.equal(a.bfloat16(), b) for a, b in zip(wanted, found, strict=True))


def test_as_arrays(server: Server) -> None:
    """NumPy gets the bits; so does who makes arrays of a batch; pickling changes nothing."""
    steps = _steps("bfloat16")
    with NumpyDataset(server.address, "d", batch_size=8, seed=3, stages=steps, epochs=1) as dataset:
        arrays = [arrays["image"] for arrays in dataset]
    batches = list(RemoteDataset(server.address, "d", batch_size=8, seed=3, stages=steps, epochs=1))

    for array, batch in zip(arrays, batches, strict=True):
        image: Any = pickle.loads(pickle.dumps(batch))["image"]
        assert array.dtype == batch.to_numpy()["image"].dtype == np.uint16
        assert torch.equal(image, _tensor(batch["image"]))
        assert np.array_equal(array, batch.to_numpy()["image"])
        assert np.array_equal(from_bfloat16(array), image.float().numpy())


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_erased_and_mixed(server: Server, layout: Any) -> None:
    """What is erased is the number nearest to the value; mixing rounds once at the end."""
    for last in ([], [RandomErasing(1.0, value=0.3), RandomHorizontalFlip()]):
        plain = _read(server, _steps("bfloat16", *last, layout=layout))
        wide = _read(server, _steps("float32", *last, layout=layout))
        assert all(torch.equal(a.bfloat16(), b) for a, b in zip(wide, plain, strict=True))
        mixed = _read(server, [*_steps("bfloat16", *last, layout=layout), _MIX])
        widened = [each.float() for each in plain]
        for images, found in zip(widened, mixed, strict=True):
            nexts = images.roll(-1, 0)
            low, high = torch.minimum(images, nexts), torch.maximum(images, nexts)
            spread = 0.01 * (1 + high.abs().maximum(low.abs()))
            assert (found.float() >= low - spread).all()
            assert (found.float() <= high + spread).all()


def test_refused(server: Server) -> None:
    """No step takes the bits for numbers."""
    for steps in ([*_steps("bfloat16"), Cast("image", "float32")],):
        with pytest.raises(BadArgumentError, match="bfloat16, which cannot be cast"):
            _read(server, steps)
    with pytest.raises(BadArgumentError, match=r"Normalize\.dtype"):
        Normalize((0.5,), (0.5,), "float8")  # type: ignore[arg-type] # what is tested


def test_all_halves() -> None:
    """Each number of bfloat16 comes back, and those between are rounded as torch rounds."""
    bits = np.arange(1 << 16, dtype=np.uint32)
    values: NDArray[np.float32] = (bits << np.uint32(16)).view(np.float32)
    values = values[~np.isnan(values)]
    between = np.concatenate(
        [np.nextafter(values, np.float32(sign)) for sign in (-np.inf, np.inf)]
        + [(values.view(np.uint32) + np.uint32(0x8000)).view(np.float32)]
    )
    between = between[~np.isnan(between)]

    assert np.array_equal(from_bfloat16(bfloat16_bits(values)), values)
    theirs = torch.from_numpy(between).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(theirs, bfloat16_bits(between))
