"""Measure expanding LZ4 against liblz4, which is the ceiling.

``python tests/benchmarks/bench_expand.py [--rounds N]`` compresses buffers of 1 MiB, as columns of
blocks have them, and prints for each kind the part that is left and the MiB/s of one thread:

- liblz4: ``LZ4_decompress_safe`` of the `lz4` package, called on a block;
- ours: ``expand`` of the compiled loops, of a frame of that very block;
- arrow: ``pyarrow.Codec("lz4")``, which is liblz4 too, of a frame as Arrow writes it, in blocks
  of 64 KiB; it takes new memory for each;
- ours: ``expand`` of that frame.

Both ratios are of medians of rounds, in each of which the ways follow one another in another order.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import platform
import random
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path

import lz4.block
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from headrace.server.kernels.loader import LOOPS

_MIB = 1 << 20
_HEAD = bytes.fromhex("04224d18404000")
_DOCS = Path(__file__).parents[2] / "docs"
_RANDOM = np.random.default_rng(0)
_CALLS = 4
"""Calls a round and way; the shortest takes 40 us."""


def _masks() -> bytes:
    masks = np.zeros((64, 128, 128), np.uint8)
    for mask in masks:
        for label in range(1, 11):
            top, left = _RANDOM.integers(0, 112, 2)
            mask[top : top + 16, left : left + 16] = label
    return masks.tobytes()


def _texts() -> bytes:
    return b"\n".join(page.read_bytes() for page in sorted(_DOCS.rglob("*.md")))


def _made_words() -> bytes:
    return b"".join([b"word%03d " % each for each in _RANDOM.integers(0, 1000, _MIB // 8).tolist()])


def _pixels() -> NDArray[np.uint8]:
    slope = np.add.outer(np.arange(512), np.arange(683)) / 5
    wave = 40 * np.sin(slope / 17)[..., None] * np.array([1, 0.5, 0.2])
    noisy = 90 + wave + _RANDOM.normal(0, 1, (512, 683, 3))
    pixels: NDArray[np.uint8] = noisy.clip(0, 255).astype(np.uint8)
    return pixels


def _jpegs() -> bytes:
    out = io.BytesIO()
    while out.tell() < _MIB:
        Image.fromarray(_pixels()).save(out, "JPEG", quality=90)
    return out.getvalue()


_KINDS: dict[str, Callable[[], bytes]] = {
    "rows of floats, few values": lambda: (
        _RANDOM.integers(0, 1000, _MIB // 4).astype(np.float32).tobytes()
    ),
    "rows of floats, rounded": lambda: (
        np.round(np.cumsum(_RANDOM.standard_normal(_MIB // 4)), 1).astype(np.float32).tobytes()
    ),
    "labels, int64": lambda: _RANDOM.integers(0, 1000, _MIB // 8).tobytes(),
    "token ids, uint16": lambda: (
        np.minimum(_RANDOM.zipf(1.2, _MIB // 2), 49_999).astype(np.uint16).tobytes()
    ),
    "token ids, int32": lambda: (
        np.minimum(_RANDOM.zipf(1.2, _MIB // 4), 49_999).astype(np.int32).tobytes()
    ),
    "English texts": _texts,
    "made texts": _made_words,
    "masks, uint8": _masks,
    "pixels, uint8": lambda: _pixels().tobytes(),
    "JPEG": _jpegs,
    "offsets of rows, int32": lambda: (np.arange(_MIB // 4) * 200).astype(np.int32).tobytes(),
    "pattern of 3 bytes": lambda: b"abc" * (_MIB // 3 + 1),
    "zeros": lambda: bytes(_MIB),
    "noise": lambda: _RANDOM.bytes(_MIB),
}


def main() -> None:
    """Run all kinds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=101)
    rounds = parser.parse_args().rounds
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}, lz4 {lz4.library_version_string()}, "
        f"pyarrow {pa.__version__}, MiB/s, medians of {rounds} rounds"
    )
    print(
        f"{'':<28}{'left':>5}{'liblz4':>8}{'ours':>8}{'ratio':>7}{'arrow':>8}{'ours':>8}{'ratio':>7}"
    )
    for name, make in _KINDS.items():
        _measure(name, make()[:_MIB], rounds)


def _measure(name: str, content: bytes, rounds: int) -> None:
    block = lz4.block.compress(content, store_size=False)
    codec = pa.Codec("lz4")
    arrow = codec.compress(content, asbytes=True)
    one = np.frombuffer(_HEAD + struct.pack("<I", len(block)) + block + bytes(4), np.uint8)
    several = np.frombuffer(arrow, np.uint8)
    out = np.empty(len(content), np.uint8)
    library, address = _liblz4(), ctypes.c_void_p(out.ctypes.data)
    ways: dict[str, Callable[[], object]] = {
        "liblz4": lambda: library(block, address, len(block), len(content)),
        "ours": lambda: LOOPS.expand(one, out),
        "arrow": lambda: codec.decompress(arrow, len(content)),
        "ours framed": lambda: LOOPS.expand(several, out),
    }
    for way in ("liblz4", "ours", "ours framed"):
        out[:] = 0
        assert ways[way]() in {True, len(content)}
        assert content == out.tobytes(), way
    spans: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in random.sample(list(ways), len(ways)):
            run = ways[way]
            run()
            start = time.perf_counter()
            for _ in range(_CALLS):
                run()
            spans[way].append(time.perf_counter() - start)
    rate = {
        way: _CALLS * len(content) / _MIB / statistics.median(each) for way, each in spans.items()
    }
    print(
        f"{name:<28}{len(arrow) / len(content):>5.2f}{rate['liblz4']:>8.0f}{rate['ours']:>8.0f}"
        f"{rate['ours'] / rate['liblz4']:>7.2f}{rate['arrow']:>8.0f}{rate['ours framed']:>8.0f}"
        f"{rate['ours framed'] / rate['arrow']:>7.2f}",
        flush=True,
    )


def _liblz4() -> Callable[..., int]:
    function = ctypes.CDLL(lz4.block._block.__file__).LZ4_decompress_safe
    function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


if __name__ == "__main__":
    main()
