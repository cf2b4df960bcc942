"""The samples that every reader is given: NumPy files, which each of them writes in its own form.

Only NumPy is needed here, because readers run in environments that have little else in common.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Items:
    """A column of bytes or texts of differing length.

    Attributes:
        values: All bytes, one sample after another.
        offsets: Sample i is ``values[offsets[i]:offsets[i + 1]]``.
        is_text: Whether they are UTF-8.
    """

    values: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    is_text: bool

    def __getitem__(self, index: int) -> bytes | str:
        item = self.values[self.offsets[index] : self.offsets[index + 1]].tobytes()
        return item.decode() if self.is_text else item


Column = NDArray[Any] | Items


@dataclass(frozen=True, slots=True)
class Samples:
    """All samples of one kind.

    Attributes:
        kind: Name of the kind.
        batch_size: Samples a batch.
        sample_count: A multiple of ``batch_size``.
        columns: Arrays of ``sample_count`` rows, or items.
    """

    kind: str
    batch_size: int
    sample_count: int
    columns: Mapping[str, Column]

    def sample(self, index: int) -> dict[str, Any]:
        """Return one sample as a reader's writer wants it: arrays, ints, bytes, str."""
        found = {}
        for name, column in self.columns.items():
            value = column[index]
            found[name] = value.item() if isinstance(value, np.generic) else value
        return found

    def all(self) -> Iterator[dict[str, Any]]:
        """Yield every sample in the order in which they are stored."""
        return map(self.sample, range(self.sample_count))

    def raw(self, index: int) -> bytes:
        """Return one sample as bytes: its columns in the order of their names."""
        return b"".join(raw_bytes(self.columns[name][index]) for name in sorted(self.columns))


def raw_bytes(value: Any) -> bytes:
    """Return the bytes of one value of a column."""
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()


def digest(batch: Mapping[str, Any]) -> int:
    """Return the sum of the checksums of a batch's samples, whatever their order is."""
    columns = [batch[name] for name in sorted(batch)]
    return sum(
        zlib.crc32(b"".join(raw_bytes(column[row]) for column in columns))
        for row in range(len(columns[0]))
    )


def save(folder: Path, samples: Samples) -> None:
    """Store samples below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, str] = {}
    for name, column in samples.columns.items():
        if isinstance(column, Items):
            names[name] = "text" if column.is_text else "bytes"
            np.save(folder / f"{name}.values.npy", column.values)
            np.save(folder / f"{name}.offsets.npy", column.offsets)
        else:
            names[name] = "array"
            np.save(folder / f"{name}.npy", column)
    about = {"kind": samples.kind, "batch_size": samples.batch_size, "columns": names}
    (folder / "about.json").write_text(json.dumps({**about, "sample_count": samples.sample_count}))


def load(folder: Path) -> Samples:
    """Map what `save` stored into memory."""
    about = json.loads((folder / "about.json").read_text())
    columns: dict[str, Column] = {}
    for name, form in about["columns"].items():
        if form == "array":
            columns[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
        else:
            values = np.load(folder / f"{name}.values.npy", mmap_mode="r")
            offsets = np.load(folder / f"{name}.offsets.npy")
            columns[name] = Items(values, offsets, is_text=form == "text")
    return Samples(about["kind"], about["batch_size"], about["sample_count"], columns)
