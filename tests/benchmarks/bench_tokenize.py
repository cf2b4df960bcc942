"""What tokenizing on the server gives, beside the same library in a DataLoader with two workers.

    PYTHONPATH=tests:examples python tests/benchmarks/bench_tokenize.py

The same texts, tokenizer and rows in turn: packed rows from a server in a process of its own, by
`RemoteDataset`; and a DataLoader of two workers that hold the texts in memory, tokenize them and
cut what they make into rows of the same length, across documents. Printed is how many real tokens
a second a loop gets, the median of interleaved rounds; the ceiling is the library in two threads
that do nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from headrace.bench.children import serving
from headrace.cli.stored.row_counter import row_counter
from headrace.client import RemoteDataset
from headrace.storage import RowOptions, index_packing, load_tokenizer
from headrace.storage.tokenizer.tokenizer import text_chunks
from support.datasets import write_dataset

_WORKERS = 2
_VOCABULARY = 8000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=6000)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    texts = _texts(arguments.documents)
    rows = arguments.length, arguments.batch
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        _train(texts[:500]).save(str(path))
        url = str(Path(folder) / "texts")
        write_dataset(
            url, pa.table({"text": texts}), shard_samples=[len(texts)], block_bytes=1 << 20
        )
        tokenizer = load_tokenizer(path)
        began = time.monotonic()
        options = RowOptions(arguments.length)
        index_packing(url, options, count_rows=row_counter(), tokenizer=tokenizer)
        size = sum(len(text.encode()) for text in texts) / 1e6
        _say(f"{len(texts)} texts, {size:.0f} MB; headrace index: {time.monotonic() - began:.1f} s")
        flags = (f"--tokenizer=bpe={path}", "--log-level=error", "--max-stream-s=0")
        with serving({"texts": url}, *flags) as server:
            makers: dict[str, Callable[[], Iterator[int]]] = {
                "headrace, packed rows": lambda: _headrace(server.address, *rows),
                f"DataLoader, {_WORKERS} workers": lambda: _loader(texts, path, *rows),
                f"the library, {_WORKERS} threads": lambda: _library(texts, path),
            }
            _measure(makers, arguments.rounds, arguments.seconds)


def _measure(makers: dict[str, Callable[[], Iterator[int]]], rounds: int, seconds: float) -> None:
    found: dict[str, list[float]] = {name: [] for name in makers}
    for _, (name, make) in itertools.product(range(rounds), makers.items()):
        found[name].append(_rate(make(), seconds))
    for name, rates in found.items():
        spread = f"{min(rates) / 1e6:.2f} to {max(rates) / 1e6:.2f}"
        _say(f"{name:28s} {statistics.median(rates) / 1e6:6.2f} million tokens/s ({spread})")


def _rate(counts: Iterator[int], seconds: float) -> float:
    for _ in range(4):
        next(counts)
    began, total = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        total += next(counts)
    return total / (time.monotonic() - began)


def _headrace(address: str, length: int, batch: int) -> Iterator[int]:
    columns = ["text", "text.documents"]
    with RemoteDataset(address, f"texts:{length}", batch_size=batch, columns=columns) as dataset:
        while True:
            for each in dataset:
                documents = each["text.documents"]
                assert isinstance(documents, torch.Tensor)
                yield int((documents >= 0).sum())


class _Rows(IterableDataset[torch.Tensor]):
    """Rows of the texts of one worker, end to end."""

    def __init__(self, texts: list[str], path: Path, length: int, batch: int) -> None:
        self._texts, self._path, self._length, self._batch = texts, path, length, batch

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        own = self._texts[info.id :: info.num_workers]
        tokenizer = load_tokenizer(self._path)
        size, left = self._length * self._batch, np.empty(0, np.int32)
        while True:
            for first in range(0, len(own), 16):
                made = tokenizer.encode([text.encode() for text in own[first : first + 16]])
                left = np.concatenate([left, *made])
                while left.size >= size:
                    yield torch.from_numpy(left[:size].reshape(self._batch, self._length).copy())
                    left = left[size:]


def _loader(texts: list[str], path: Path, length: int, batch: int) -> Iterator[int]:
    rows = _Rows(texts, path, length, batch)
    for each in DataLoader(rows, batch_size=None, num_workers=_WORKERS):
        yield each.numel()


def _library(texts: list[str], path: Path) -> Iterator[int]:
    tokenizer = load_tokenizer(path)
    encoded = [text.encode() for text in texts]
    chunks = list(text_chunks([len(text) for text in encoded]))
    with ThreadPoolExecutor(_WORKERS) as threads:
        while True:
            for first in range(0, len(chunks), _WORKERS):
                parts = [encoded[start:end] for start, end in chunks[first : first + _WORKERS]]
                yield sum(
                    each.size for part in threads.map(tokenizer.encode, parts) for each in part
                )


def _texts(count: int) -> list[str]:
    """Return texts of words that come as often as words do, a few hundred each."""
    rng = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = ["".join(rng.choice(letters[: 8 + at % 19], 2 + at % 8)) for at in range(20_000)]
    ranks = np.minimum(rng.zipf(1.2, (count, 600)) - 1, len(words) - 1)
    lengths = rng.integers(100, 600, count)
    return [
        " ".join([words[at] for at in row[:length]])
        for row, length in zip(ranks.tolist(), lengths.tolist(), strict=True)
    ]


def _train(texts: list[str]) -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, show_progress=False, initial_alphabet=alphabet
    )
    library.train_from_iterator(texts, trainer)
    return library


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _say(f"{os.cpu_count()} processors")
    main()
