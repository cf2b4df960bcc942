"""A conversion writes in a random order without Spark: exactly, bounded, and leaving nothing."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from headrace.converter import Format, Progress, WriteOptions, convert_files
from headrace.converter.local.shuffle import ShuffledPieces
from headrace.errors import ConfigurationError
from headrace.storage import open_dataset

_SAMPLES = 20_000
_TYPES: dict[str, pa.DataType] = {"id": pa.int64(), "noise": pa.binary()}


@dataclass(frozen=True)
class _Numbers:
    """Numbers in pieces of batches of uneven size, with some noise beside each."""

    counts: tuple[int, ...]
    noise_bytes: int = 8

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(_TYPES)

    @property
    def raw_bytes(self) -> int:
        return sum(self.counts) * (self.noise_bytes + 12)

    @property
    def count(self) -> int:
        return len(self.counts)

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        first = sum(self.counts[:piece])
        rng = np.random.default_rng(piece)
        for start in range(0, self.counts[piece], 777):
            size = min(777, self.counts[piece] - start)
            noise = [rng.bytes(self.noise_bytes) for _ in range(size)]
            ids = np.arange(first + start, first + start + size)
            yield pa.record_batch({"id": pa.array(ids), "noise": noise}, schema=self.schema)


def _order(
    pieces: _Numbers, folder: Path, *, seed: int = 1, threads: int = 2, memory: int = 1 << 20
) -> NDArray[np.int64]:
    with ShuffledPieces(
        pieces, seed=seed, folder=str(folder), threads=threads, memory_bytes=memory
    ) as shuffled:
        shuffled.scatter(lambda *_: None)
        batches = [batch for piece in range(shuffled.count) for batch in shuffled.read(piece)]
        assert {pieces.schema} == {batch.schema for batch in batches}
        return np.concatenate([batch.column("id").to_numpy() for batch in batches])


def test_the_order_follows_from_the_seed_alone(tmp_path: Path) -> None:
    """Neither threads nor memory, of which little scatters buckets again, change it."""
    pieces = _Numbers((1000, 1, 0, 1999), noise_bytes=1000)
    order = _order(pieces, tmp_path)

    assert list(range(3000)) == sorted(order.tolist())
    for threads, memory in ((1, 1 << 30), (5, 1 << 17)):
        assert np.array_equal(order, _order(pieces, tmp_path, threads=threads, memory=memory))
    assert not np.array_equal(order, _order(pieces, tmp_path, seed=2, memory=1 << 30))
    assert [] == list(tmp_path.iterdir())


def test_the_order_is_uniform(tmp_path: Path) -> None:
    """Where samples go has no pattern: pairs of place and origin, neighbours, fixed points."""
    pieces = _Numbers((_SAMPLES // 4,) * 4, noise_bytes=1)
    cells = np.zeros((20, 20))
    follows = fixed = 0
    for seed in range(10):
        order = _order(pieces, tmp_path, seed=seed, memory=1 << 30)
        places = np.arange(_SAMPLES) * 20 // _SAMPLES
        np.add.at(cells, (places, order * 20 // _SAMPLES), 1)
        follows += int(np.count_nonzero(np.diff(order) == 1))
        fixed += int(np.count_nonzero(order == np.arange(_SAMPLES)))
    expected = 10 * _SAMPLES / 400
    chi_square = ((cells - expected) ** 2 / expected).sum()

    # 361 degrees of freedom: 0.01 % are above 471 and below 266. Poisson of mean 10: above 24.
    assert 266 < chi_square < 471
    assert follows <= 24
    assert fixed <= 24


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    """40 MiB of samples with a limit of 2 MiB stay below eight times that."""
    pieces = _Numbers((10_000,) * 4, noise_bytes=1000)
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        with ShuffledPieces(
            pieces, seed=1, folder=str(tmp_path), threads=1, memory_bytes=2 << 20
        ) as shuffled:
            shuffled.scatter(lambda *_: None)
            count = sum(b.num_rows for p in range(shuffled.count) for b in shuffled.read(p))
    finally:
        pa.set_memory_pool(before)

    assert 40_000 == count
    assert (pool.max_memory() or 0) < 16 << 20


def _parquet(folder: Path) -> str:
    ids = np.arange(_SAMPLES)
    table = pa.table({"id": ids, "label": ids // 100, "text": [f"sample {i}" for i in ids]})
    pq.write_table(table, folder / "a.parquet", row_group_size=3000)
    return str(folder / "a.parquet")


def _ids(url: Path | str) -> list[int]:
    with open_dataset(str(url)) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
        found: list[int] = pa.Table.from_batches(blocks).column("id").to_numpy().tolist()
        return found


def test_files_are_written_in_a_random_order(tmp_path: Path) -> None:
    """The same samples, in an order of their own, told beforehand and on the way."""
    source = _parquet(tmp_path)
    said: list[str] = []
    seen: list[Progress] = []
    convert_files(
        source,
        str(tmp_path / "d"),
        source_format="parquet",
        shuffle_seed=7,
        notice=said.append,
        progress=seen.append,
    )
    order = _ids(tmp_path / "d")

    assert list(range(_SAMPLES)) == sorted(order)
    assert order[:100] != sorted(order[:100])
    assert ["shuffling writes"] == [sentence[:16] for sentence in said]
    passes = [bool(progress.shuffled_bytes) for progress in seen]
    assert passes == sorted(passes, reverse=True)
    assert {True, False} == set(passes)
    with open_dataset(str(tmp_path / "d")) as dataset:
        assert (dataset.stretches().block_samples > 0).all()


def _csv(folder: Path) -> str:
    (folder / "a.csv").write_text("id,x\n" + "".join(f"{i},{i * i}\n" for i in range(3000)))
    return str(folder / "a.csv")


def _json(folder: Path) -> str:
    (folder / "a.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(3000)))
    return str(folder / "a.jsonl")


def _mds(folder: Path) -> str:
    convert_files(
        _csv(folder),
        str(folder / "mds"),
        source_format="csv",
        format="mds",
        write=WriteOptions(shard_bytes=1 << 14),
    )
    return str(folder / "mds")


@pytest.mark.parametrize(
    ("write", "source_format"), [(_csv, "csv"), (_json, "json"), (_mds, "mds")]
)
def test_every_format_is_shuffled(
    tmp_path: Path, write: Callable[[Path], str], source_format: str
) -> None:
    """Text and datasets of others, with splits, into either format."""
    source = write(tmp_path)
    targets: tuple[Format, ...] = ("arrow", "mds")
    for target in targets:
        convert_files(
            source,
            str(tmp_path / target),
            source_format=source_format,  # type: ignore[arg-type] # one of them
            format=target,
            splits={"a": 0.5, "b": 0.5},
            shuffle_seed=3,
        )
        parts = [_ids(tmp_path / target / split) for split in ("a", "b")]

        assert list(range(3000)) == sorted(parts[0] + parts[1])
        assert all(part != sorted(part) for part in parts)


@pytest.mark.parametrize("in_first_pass", [True, False])
def test_an_interrupt_leaves_neither_dataset_nor_spill(
    tmp_path: Path, *, in_first_pass: bool
) -> None:
    """Ctrl-C in either pass: DST is as it was, and the disk is given back."""
    source = _parquet(tmp_path)
    spill = tmp_path / "spill"
    spill.mkdir()

    def interrupt(progress: Progress) -> None:
        if bool(progress.shuffled_bytes) == in_first_pass:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_files(
            source,
            str(tmp_path / "d"),
            source_format="parquet",
            shuffle_seed=7,
            spill_folder=str(spill),
            progress=interrupt,
        )

    assert [] == [path for path in (tmp_path / "d").rglob("*") if path.is_file()]
    assert [] == list(spill.iterdir())
    assert not any(target.startswith(str(spill)) for target in _open_files())


def _open_files() -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.append(str(descriptor.readlink()))
    return found


def test_a_disk_without_room_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much is needed, how much there is, where, and what to do."""
    source = _parquet(tmp_path)
    usage = type("Usage", (), {"free": 5000})
    monkeypatch.setattr("headrace.converter.local.spill_file.shutil.disk_usage", lambda _: usage)

    with pytest.raises(ConfigurationError, match=r"has 5,000 free; .*spill-folder.*nothing was"):
        convert_files(source, str(tmp_path / "d"), source_format="parquet", shuffle_seed=7)

    assert [] == [path for path in (tmp_path / "d").rglob("*") if path.is_file()]


def test_a_disk_that_fills_up_is_told(tmp_path: Path) -> None:
    """What is spilled by then, where, and what to do; nothing is written."""
    source = _parquet(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))  # a file takes no more than this
    try:
        with pytest.raises(
            ConfigurationError, match=r"is full: .* temporary data .*spill-folder.*nothing"
        ):
            convert_files(source, str(tmp_path / "d"), source_format="parquet", shuffle_seed=7)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [] == [path for path in (tmp_path / "d").rglob("*") if path.is_file()]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigurationError, match=r"nowhere.*cannot be used.*spill-folder"):
        convert_files(
            _parquet(tmp_path),
            str(tmp_path / "d"),
            source_format="parquet",
            shuffle_seed=7,
            spill_folder=str(tmp_path / "nowhere"),
        )
