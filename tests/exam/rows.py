"""Files of rows of one length, for libraries that read whatever a user can index."""

from __future__ import annotations

from pathlib import Path

from exam.entry import Batch, Shards
from exam.job import PAYLOAD_BYTES, SHARD_SAMPLES
from exam.pictures import stacked

_ROW = 8 + PAYLOAD_BYTES


def write_rows(folder: Path, shards: Shards) -> None:
    """Write a file a shard, beside those that are there."""
    folder.mkdir(exist_ok=True)
    for shard in shards:
        rows = b"".join(sample_id.to_bytes(8, "little") + value for sample_id, value in shard)
        (folder / f"{shard[0][0]:08d}.rows").write_bytes(rows)


class Rows:
    """All rows below a folder, by index."""

    def __init__(self, folder: str) -> None:
        self._paths = sorted(Path(folder).glob("*.rows"))

    def __len__(self) -> int:
        return len(self._paths) * SHARD_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        shard, row = divmod(int(index), SHARD_SAMPLES)
        with self._paths[shard].open("rb") as file:
            file.seek(row * _ROW)
            found = file.read(_ROW)
        return int.from_bytes(found[:8], "little"), found[8:]


def columns(samples: list[tuple[int, bytes]]) -> Batch:
    """Return a batch of samples as columns."""
    return [sample_id for sample_id, _ in samples], stacked([value for _, value in samples])
