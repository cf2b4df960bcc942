"""Measure images that a server decodes, crops and flips, against a decoder and nothing else.

``PYTHONPATH=tests python tests/benchmarks/bench_images.py PHOTOS [--seconds S] [--rounds N]`` takes
the JPEG files of a folder (500 x 375 of quality 90 is what rates are quoted for), and prints images
a second, the median of interleaved rounds, and the processor time of all processes an image, of

- *decode*: simplejpeg alone, into memory that is used again, on a thread a processor;
- *bare*: decoding, RandomResizedCrop(224) and a flip with the server's own code into batches of
  256, on a thread a processor, and nothing else: the ceiling;
- *opencv*: the same with OpenCV's linear resize, which is not antialiased, where cv2 is installed;
- *ring* and *grpc*: one loop that reads batches of 256 from a server, in shared memory and over
  TCP; *ring x4* and *grpc x4* are four loops at once, each of a quarter;
- *kept* and *kept grpc*: one loop, from a server that has kept all images decoded
  (``--decoded-cache-bytes``);
- *loader*: a DataLoader of PyTorch with a worker a processor, which does the same with Pillow;
- *normal*, *mixup* and *cutmix*: as *ring*, with ``Normalize`` to float16, and with ``MixUp`` or
  ``CutMix`` behind that; *skip*: as *ring*, with ``on_error="skip"``, and *masks* with a mask for
  each image, a PNG of its size with four classes;
- *resized* and *resized grpc*: one loop of images brought to 224 x 224 and nothing else, and *bare
  resized* the same in threads, without a server.

Then what each has of *bare*, and the last ones of what they are without what they are named for.
The server is a process of its own on the same processors. Rates and processor time are those of
streams that run: from the time when each loop has three batches to that when the first ends. Until
then streams get further ahead, with images that no loop has yet. The last ones, and *kept*, are
measured where ``--only`` names them.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from headrace.bench.children import processor_s, serving
from headrace.client import (
    CutMix,
    DecodeImage,
    MixUp,
    Normalize,
    NumpyDataset,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Transport,
)
from headrace.order import sample_keys
from headrace.server.batch.row_pool import allowed_processors
from headrace.server.stages.images.files import Decoder, head_of, reduction_of, upright_size
from headrace.server.stages.images.recipe import recipe_of
from headrace.server.stages.images.transforms import RandomResizedCrop as Crop
from support.datasets import write_dataset
from support.threads import at_once

_SIDE = 224
_BATCH = 256
# Batches of a loop after which its stream is as far ahead as it gets.
_FILLED = 3
# What an image of 500 x 375 takes decoded, and a little more; and how long all are read first.
_DECODED_BYTES = 800_000
_FILL_S = 6.0
_CROPS = (RandomResizedCrop(_SIDE), RandomHorizontalFlip())
_STEP = DecodeImage("image", transforms=_CROPS)
_NORMAL = DecodeImage(
    "image",
    transforms=[*_CROPS, Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "float16")],
)
_RESIZED = DecodeImage("image", _SIDE, _SIDE)
_CLASSES = 1000
# By name: the way that does not do it, and the steps.
_BESIDE: dict[str, tuple[str, list[Any]]] = {
    "normal": ("ring", [_NORMAL]),
    "mixup": ("normal", [_NORMAL, MixUp("image", "label", num_classes=_CLASSES)]),
    "cutmix": ("normal", [_NORMAL, CutMix("image", "label", num_classes=_CLASSES)]),
    "skip": ("ring", [DecodeImage("image", transforms=_CROPS, on_error="skip")]),
    "masks": ("ring", [DecodeImage("image", transforms=_CROPS, masks="mask")]),
}

Run = Callable[[float], tuple[float, float]]
"""Works for the given seconds; returns images a second, and the processor time of an image."""


def in_threads(files: list[bytes], make: Callable[[], Callable[[int], None]]) -> Run:
    """Return what calls one function a processor with the numbers of files, one after another."""

    def run(seconds: float) -> tuple[float, float]:
        counts = [0] * allowed_processors()
        used, began = _used(), time.monotonic()
        end = began + seconds

        def work(thread: int) -> None:
            do = make()
            at = thread
            while time.monotonic() < end:
                do(at % len(files))
                at += len(counts)
                counts[thread] += 1

        at_once(work, range(len(counts)))
        count = sum(counts)
        return count / (time.monotonic() - began), (_used() - used) / count

    return run


def decoding(files: list[bytes]) -> Run:
    """Return decoding alone."""

    def make() -> Callable[[int], None]:
        decoder = Decoder(3)

        def do(at: int) -> None:
            content = memoryview(files[at])
            decoder.pixels(content, head_of(content))

        return do

    return in_threads(files, make)


def bare(files: list[bytes], stage: DecodeImage = _STEP) -> Run:
    """Return what the server does to images, and nothing else."""
    recipe = recipe_of(stage.to_message())
    draws = recipe.draws(sample_keys(1, 0, np.arange(len(files))), 0)
    out = np.empty((_BATCH, *recipe.shape), np.uint8)

    def make() -> Callable[[int], None]:
        decoder = Decoder(3)

        def do(at: int) -> None:
            content = memoryview(files[at])
            head = head_of(content)
            size = upright_size(content, head)
            reduction = reduction_of(*size, recipe.least_size(*size))
            recipe.make(decoder.pixels(content, head, reduction), draws, at, out[at % _BATCH])

        return do

    return in_threads(files, make)


def opencv(files: list[bytes]) -> Run | None:
    """Return the same with OpenCV; None without it."""
    try:
        import cv2  # noqa: PLC0415 - may be missing
    except ImportError:
        return None
    cv2.setNumThreads(1)
    recipe = recipe_of(_STEP.to_message())
    keys = sample_keys(1, 0, np.arange(len(files)))
    ((place, crop), (flip, _)) = recipe.geometry
    assert isinstance(crop, Crop)
    drawn = recipe.draws(keys, 0)
    boxes = [crop.box(375, 500, row) for row in drawn[place].tolist()]
    out = np.empty((_BATCH, *recipe.shape), np.uint8)

    def make() -> Callable[[int], None]:
        def do(at: int) -> None:
            pixels = cv2.imdecode(np.frombuffer(files[at], np.uint8), cv2.IMREAD_COLOR)
            top, left, height, width = boxes[at]
            part = pixels[top : top + height, left : left + width]
            into = out[at % _BATCH]
            cv2.resize(part, (_SIDE, _SIDE), dst=into, interpolation=cv2.INTER_LINEAR)
            if drawn[flip][at, 0] < 0.5:
                cv2.flip(into, 1, dst=into)

        return do

    return in_threads(files, make)


def served(
    address: str,
    kind: Any,
    pid: int,
    *,
    loops: int,
    steps: Sequence[Any] = (_STEP,),
    columns: Sequence[str] = ("image",),
) -> Run:
    """Return loops over a server, whose process is ``pid``."""

    def run(seconds: float) -> tuple[float, float]:
        # Of each loop: when it got each batch, and of how many images.
        taken: list[list[tuple[float, int]]] = [[] for _ in range(loops)]
        # The processor time when all had `_FILLED`, and when the first ended.
        used: dict[str, float] = {}

        def read(loop: int) -> None:
            with NumpyDataset(
                address,
                "photos",
                batch_size=_BATCH,
                stages=steps,
                columns=list(columns),
                rank=loop,
                world_size=loops,
                epochs=1000,
                transport=Transport(kind),
            ) as dataset:
                for _ in range(1000):
                    for arrays in dataset:
                        now = time.monotonic()
                        taken[loop].append((now, len(arrays["image"])))
                        if min(map(len, taken)) < _FILLED:
                            continue
                        if not used:
                            used.setdefault("began", _used(pid))
                        if now >= _filled(taken) + seconds:
                            used.setdefault("ended", _used(pid))
                            return

        at_once(read, range(loops))
        # While all run, to the last batch of the first to end.
        began, ended = _filled(taken), min(own[-1][0] for own in taken)
        counted = sum(_made(own, ended) - _made(own, began) for own in taken)
        return counted / (ended - began), (used["ended"] - used["began"]) / counted

    return run


def _filled(taken: list[list[tuple[float, int]]]) -> float:
    """Return when the last loop got its batch number `_FILLED`."""
    return max(own[_FILLED - 1][0] for own in taken)


def _made(own: list[tuple[float, int]], moment: float) -> float:
    """Return how many images of a loop were made by then: those of a batch one after another.

    Loops of equal shares get their batches at the same time. To count whole batches would leave out
    one of all loops but one, a tenth of what four loops get in three seconds.
    """
    moments, counts = zip(*own, strict=True)
    return float(np.interp(moment, moments, np.cumsum(counts)))


class _Photos:
    """The files, decoded by Pillow, cropped and flipped, for a DataLoader."""

    def __init__(self, files: list[bytes]) -> None:
        self._files = files
        recipe = recipe_of(_STEP.to_message())
        ((place, crop), (flip, _)) = recipe.geometry
        assert isinstance(crop, Crop)
        draws = recipe.draws(sample_keys(1, 0, np.arange(len(files))), 0)
        self._boxes = [crop.box(375, 500, row) for row in draws[place].tolist()]
        self._flips = (draws[flip][:, 0] < 0.5).tolist()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, at: int) -> NDArray[np.uint8]:
        top, left, height, width = self._boxes[at]
        image = Image.open(io.BytesIO(self._files[at])).convert("RGB")
        box = (left, top, left + width, top + height)
        scaled = image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(scaled)
        return np.ascontiguousarray(pixels[:, ::-1]) if self._flips[at] else pixels


def loader(files: list[bytes]) -> Run:
    """Return a DataLoader of PyTorch."""
    import torch  # noqa: PLC0415 - for this one

    photos: Any = _Photos(files)

    def run(seconds: float) -> tuple[float, float]:
        count, first, began, used = 0, 0, 0.0, _used()
        end = time.monotonic() + seconds
        while True:
            batches = torch.utils.data.DataLoader(
                photos, batch_size=_BATCH, shuffle=True, num_workers=allowed_processors()
            )
            for batch in batches:
                now = time.monotonic()
                count += len(batch)
                if not began:
                    began, first = now, count
                elif now >= end:
                    rate = (count - first) / (now - began)
                    # Processor time of workers counts when they have ended.
                    del batches
                    return rate, (_used() - used) / count

    return run


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    files = [path.read_bytes() for path in sorted(options.photos.glob("*.jpg"))]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = str(folder / "photos")
        table = pa.table({"image": pa.array(files, pa.binary())})
        asked = options.only.split(",")
        if set(asked) & set(_BESIDE):
            masks = [mask_of(file) for file in files] if "masks" in asked else files
            labels = np.arange(len(files), dtype=np.int64) % _CLASSES
            table = table.append_column("label", pa.array(labels))
            table = table.append_column("mask", pa.array(masks, pa.binary()))
        write_dataset(url, table, shard_samples=[len(files)], block_bytes=1 << 20)
        unix = folder / "socket"
        listen = f"--listen=127.0.0.1:0,unix:{unix}"
        server = stack.enter_context(serving({"photos": url}, listen))
        address, pid = server.address.split()[0], server.process.pid
        ways: dict[str, Run | None] = {
            "decode": decoding(files),
            "bare": bare(files),
            "opencv": opencv(files),
            "ring": served(f"unix:{unix}", "ring", pid, loops=1),
            "grpc": served(address, "grpc", pid, loops=1),
            "ring x4": served(f"unix:{unix}", "ring", pid, loops=4),
            "grpc x4": served(address, "grpc", pid, loops=4),
            "loader": loader(files),
            "bare resized": bare(files, _RESIZED),
            "resized": served(f"unix:{unix}", "ring", pid, loops=1, steps=[_RESIZED]),
            "resized grpc": served(address, "grpc", pid, loops=1, steps=[_RESIZED]),
        }
        for name in (each for each in _BESIDE if each in asked):
            columns = {"mixup": ["label"], "cutmix": ["label"], "masks": ["mask"]}.get(name, [])
            ways[name] = served(
                f"unix:{unix}",
                "ring",
                pid,
                loops=1,
                steps=_BESIDE[name][1],
                columns=["image", *columns],
            )
        wanted = asked if options.only else [each for each in ways if "resized" not in each]
        if "kept" in wanted or "kept grpc" in wanted:
            ways |= _keeping(stack, url, folder / "keeping", _DECODED_BYTES * len(files))
        runs = {name: run for name, run in ways.items() if run is not None and name in wanted}
        rates: dict[str, list[float]] = {name: [] for name in runs}
        costs: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(options.rounds + 1):
            for name, run in runs.items():
                rate, cost_s = run(options.seconds if number else 1.0)
                if number:
                    rates[name].append(rate)
                    costs[name].append(cost_s * 1e6)
    print(
        f"{platform.machine()}, {allowed_processors()} of {os.cpu_count()} processors, "
        f"{len(files)} files of {sum(map(len, files)) // len(files)} bytes"
    )
    ceiling = statistics.median(rates["bare"]) if "bare" in rates else 0.0
    for name in runs:
        rate, cost = statistics.median(rates[name]), statistics.median(costs[name])
        share = f"{rate / ceiling:5.2f} of bare" if ceiling else ""
        base = "bare resized" if name.startswith("resized") else _BESIDE.get(name, ("",))[0]
        if base in rates:
            share += f"  {_ratio(rates[name], rates[base]):5.2f} of {base}"
            share += f", processor time {_ratio(costs[name], costs[base]):5.2f}"
        print(f"{name:8} {rate:7.0f} images/s  {cost:6.0f} us of processor an image  {share}")


def mask_of(file: bytes) -> bytes:
    """Return a mask for a photograph, as a PNG: four classes by how light it is, in patches."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(file)) as photo:
        coarse = photo.convert("L").resize((50, 38)).point(lambda level: level // 64)
        coarse.resize(photo.size, Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()


def _ratio(rates: list[float], base: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(rates, base, strict=True))


def _keeping(stack: ExitStack, url: str, unix: Path, budget_bytes: int) -> dict[str, Run]:
    """Return loops over a server that has all images decoded."""
    server = stack.enter_context(
        serving(
            {"photos": url},
            f"--decoded-cache-bytes={budget_bytes}",
            f"--listen=127.0.0.1:0,unix:{unix}",
        )
    )
    pid = server.process.pid
    ways = {
        "kept": served(f"unix:{unix}", "ring", pid, loops=1),
        "kept grpc": served(server.address.split()[0], "grpc", pid, loops=1),
    }
    began = time.monotonic()
    while time.monotonic() - began < _FILL_S:
        ways["kept"](1.0)
    return ways


def _used(pid: int | None = None) -> float:
    """Return the processor time of this process and those that it ended, and of another."""
    mine = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime
    return own if pid is None else own + processor_s(pid)


if __name__ == "__main__":
    main()
