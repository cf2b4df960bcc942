"""Mutated files of every format: a typed error or an answer, no crash, no hang.

Mutations are those that parsers fall over: single bits, extreme integers at any place, pieces cut
out, doubled, moved, swapped with noise. Checksums are made to agree where the format has them, so
that what lies behind them is reached. ``make test`` runs the same few hundred each time; the
``long`` ones are drawn again.
"""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.storage import Place, Store, StoreOptions, open_dataset, open_store, sample_bytes
from headrace.storage.dataset.manifest import decode_shard_table
from headrace.storage.dataset.pointer import VersionEntry, decode_pointer
from headrace.storage.dataset.read_manifest import read_manifest
from headrace.storage.mds import stored_index as mds_index
from headrace.storage.shard.block_table import decode_page
from headrace.storage.webdataset import decode_stored_index, encode_stored_index, open_webdataset
from storage.hostile_blocks import Codec, HostileBlock, honest_batch, message_of
from storage.mds.lines_make import write_lines
from storage.mds.mds_make import texts, write_mds
from storage.webdataset.tar_files import samples as tar_samples
from storage.webdataset.tar_files import write_tar
from support.shards import numbered_batch, pointer_of, write_shards_of

_EXTREMES = (0, 1, 2, 7, 8, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63)
_DEADLINE = timedelta(seconds=20)  # a hang, not a busy machine
_QUICK = settings(
    max_examples=200,
    deadline=_DEADLINE,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
_LONG = settings(_QUICK, max_examples=10_000, derandomize=False)


class Mutation:
    """One change of a file, at a place that fits into files of any length."""

    def __init__(self, kind: str, place: float, value: int, size: int) -> None:
        self._kind = kind
        self._place = place
        self._value = value
        self._size = size

    def __repr__(self) -> str:
        return f"Mutation({self._kind!r}, {self._place!r}, {self._value!r}, {self._size!r})"

    def applied(self, content: bytes) -> bytes:
        """Return the changed content."""
        at = int(self._place * (len(content) + 1))
        head, piece, tail = content[:at], content[at : at + self._size], content[at + self._size :]
        match self._kind:
            case "flip":
                byte = bytes([(content[at : at + 1] or b"\0")[0] ^ (1 << self._value % 8)])
                return head + byte + content[at + 1 :]
            case "integer":
                aligned = at - at % 4
                number = struct.pack("<Q", self._value)[: 4 if self._size % 2 else 8]
                return content[:aligned] + number + content[aligned + len(number) :]
            case "cut":
                return head
            case "drop":
                return head + tail
            case "double":
                return head + piece + piece + tail
            case _:
                return head + bytes(self._value * at % 256 for at in range(self._size)) + tail


_MUTATIONS = st.lists(
    st.builds(
        Mutation,
        st.sampled_from(["flip", "integer", "cut", "drop", "double", "noise"]),
        st.floats(0, 1),
        st.sampled_from(_EXTREMES) | st.integers(0, 2**64 - 1),
        st.integers(1, 64),
    ),
    min_size=1,
    max_size=4,
)


def _mutated(content: bytes, mutations: list[Mutation]) -> bytes:
    for mutation in mutations:
        content = mutation.applied(content)
    return content


class Target:
    """A format: an honest file, and what reads it."""

    def __init__(self, content: bytes, read: Callable[[bytes], object]) -> None:
        self.content = content
        self.read = read

    def survives(self, content: bytes) -> bool:
        """Read it; anything but an answer or an error of ours is raised."""
        try:
            self.read(content)
        except HeadraceError as error:
            return bool(error.message)
        return True


def _block(codec: Codec | None) -> Target:
    batch = honest_batch()
    raw_bytes = int(sample_bytes(batch).sum())

    def read(content: bytes) -> object:
        return HostileBlock(content, batch.schema, batch.num_rows, raw_bytes).decode().to_pylist()

    return Target(bytes(message_of(batch, codec=codec)), read)


def _shard_table(root: Path) -> Target:
    store, entry = _small_dataset(root)
    return Target(
        store.read(entry.shards.name),
        lambda found: decode_shard_table(found, fingerprint=entry.fingerprint, place="x"),
    )


def _page(root: Path) -> Target:
    store, entry = _small_dataset(root)
    manifest = read_manifest(store, entry)
    [page] = manifest.pages
    return Target(
        store.read(entry.blocks.name, offset=page.offset, length=page.stored_bytes),
        lambda found: decode_page(found, page, row_count=manifest.block_count, place="x"),
    )


def _pointer(root: Path) -> Target:
    store, _ = _small_dataset(root)
    return Target(store.read("headrace.json"), lambda found: decode_pointer(found, place="x"))


def _small_dataset(root: Path) -> tuple[Store, VersionEntry]:
    _write_shards(root)
    store = open_store(str(root))
    return store, pointer_of(store).current


def _file(root: Path, write: Callable[[Path], None], name: str) -> Target:
    """Return a target that reads a whole dataset of which one file has changed."""
    write(root)

    def read(content: bytes) -> None:
        (root / name).write_bytes(content)
        with open_dataset(str(root)) as dataset:
            for block in range(dataset.block_count):
                dataset.read_block(block)

    return Target((root / name).read_bytes(), read)


def _write_shards(root: Path) -> None:
    write_shards_of(str(root), [numbered_batch(0, 70)])


def _write_mds(root: Path) -> None:
    write_mds(root, texts(40))


def _write_mds_zstd(root: Path) -> None:
    write_mds(root, texts(40), compression="zstd")


def _write_json(root: Path) -> None:
    write_lines(root, "json")


def _write_csv(root: Path) -> None:
    write_lines(root, "csv")


def _stored_mds_index(root: Path) -> Target:
    _write_mds(root)
    _, content = mds_index.stored_index_of(Place(str(root), open_store(str(root))))
    return Target(content, lambda found: mds_index.decode_stored_index(found, place="x"))


def _stored_webdataset_index(root: Path) -> Target:
    write_tar(root / "a.tar", tar_samples(0, 20))
    with open_webdataset(str(root), options=StoreOptions()) as dataset:
        content = encode_stored_index(dataset.index)
    return Target(content, lambda found: decode_stored_index(found, place="x"))


def _write_parquet(root: Path) -> None:
    pq.write_table(pa.Table.from_batches([numbered_batch(0, 70)]), root / "a.parquet")


def _parquet_footer(root: Path) -> Target:
    _write_parquet(root)
    path = root / "a.parquet"
    file = path.read_bytes()
    length = struct.unpack("<I", file[-8:-4])[0]
    data, footer = file[: -8 - length], file[-8 - length : -8]
    whole = _file(root, lambda _: None, "a.parquet")

    def read(content: bytes) -> object:
        return whole.read(data + content + struct.pack("<I", len(content)) + b"PAR1")

    return Target(footer, read)


def _tar(root: Path) -> Target:
    """A tar file whose headers have the right checksums, whatever else is changed."""
    path = root / "a.tar"
    whole = write_tar(path, tar_samples(0, 9))
    with tarfile.open(path) as tar:
        headers = [member.offset for member in tar]

    def read(content: bytes) -> object:
        changed = bytearray(content)
        for at in headers:
            header = changed[at : at + 512]
            if len(header) == 512:
                stated = sum(header) - sum(header[148:156]) + 8 * ord(" ")
                changed[at + 148 : at + 156] = f"{stated:06o}\0 ".encode()
        path.write_bytes(changed)
        with open_dataset(str(root)) as dataset:
            return [dataset.read_block(block) for block in range(dataset.block_count)]

    return Target(whole, read)


_TARGETS: dict[str, Callable[[Path], Target]] = {
    "block": lambda _: _block(None),
    "compressed block": lambda _: _block("zstd"),
    "shard": lambda root: _file(root, _write_shards, "shards/shard-00000.arrow"),
    "shard table": _shard_table,
    "page of blocks": _page,
    "pointer": _pointer,
    "MDS shard": lambda root: _file(root, _write_mds, "shard.00000.mds"),
    "MDS index": lambda root: _file(root, _write_mds, "index.json"),
    "compressed MDS shard": lambda root: _file(root, _write_mds_zstd, "shard.00000.mds.zstd"),
    "stored MDS index": _stored_mds_index,
    "stored WebDataset index": _stored_webdataset_index,
    "MDS lines of JSON": lambda root: _file(root, _write_json, "shard.00000.json"),
    "MDS lines of CSV": lambda root: _file(root, _write_csv, "shard.00000.csv"),
    "Parquet footer": _parquet_footer,
    "WebDataset tar": _tar,
    "Parquet": lambda root: _file(root, _write_parquet, "a.parquet"),
}


@pytest.fixture(scope="module", params=_TARGETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Each format in turn."""
    made = _TARGETS[request.param](tmp_path_factory.mktemp("fuzz"))
    assert made.survives(made.content)
    return made


@_QUICK
@given(mutations=_MUTATIONS)
def test_mutated_files_are_read_or_refused(target: Target, mutations: list[Mutation]) -> None:
    """Whatever is changed, the answer is samples or a typed error with a message."""
    assert target.survives(_mutated(target.content, mutations))


@pytest.mark.long
@pytest.mark.timeout(1800)
@_LONG
@given(mutations=_MUTATIONS)
def test_many_mutated_files_are_read_or_refused(target: Target, mutations: list[Mutation]) -> None:
    """The same, with files that no run before has seen."""
    assert target.survives(_mutated(target.content, mutations))
