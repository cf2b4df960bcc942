"""Group the members of tar files into samples, and cut the samples into blocks.

Consecutive members whose names agree up to the first dot are one sample; the rest of the name, in
lower case, is the column. A sample is read with one range, so its members must be neighbours and
have their contents there: a key that comes back later, and a link, are refused.

Source: the README of webdataset 0.2, "The WebDataset Format".
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import ConfigurationError, NotADatasetError
from headrace.storage.shard.block_cutter import even_starts
from headrace.storage.source.kinds import is_tar_name
from headrace.storage.source.source import Progress
from headrace.storage.store.store import ObjectEntry, Store
from headrace.storage.webdataset.columns import KEY, MAX_COLUMNS, MAX_VALUE_BYTES, column_field
from headrace.storage.webdataset.tar import Member, members_of, tar_damage

BLOCK_BYTES = (
    1 << 20
)  # as the blocks of headrace's own shards: a range read of this size is worth its trip
INDEX_THREADS = 16
"""The number of tar files whose headers are read at once."""

_MAX_NAME_BYTES = 64 << 10  # arbitrary; Linux opens paths of 4 KiB
_MAX_KEYS_BYTES = 2**31 - 1  # what 32-bit offsets can address

_PREFIX = b"headrace webdataset v1\n"


@dataclass(frozen=True, slots=True, eq=False)
class TarIndex:
    """The samples of one tar file.

    Attributes:
        entry: The file.
        keys: ``(samples,)`` strings; names up to the first dot.
        first_members: ``(samples + 1,) int64``; sample i has the members from entry i on.
        columns: ``(members,) int64``; indices into ``names``.
        offsets: ``(members,) int64``; first bytes.
        sizes: ``(members,) int64``.
        names: Names of columns, in order of their first occurrence.
    """

    entry: ObjectEntry
    keys: pa.StringArray
    first_members: NDArray[np.int64]
    columns: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def sample_count(self) -> int:
        """Samples."""
        return len(self.first_members) - 1

    @property
    def block_starts(self) -> NDArray[np.int64]:
        """``(blocks + 1,) int64``: the sample that each block starts with, and the end.

        Blocks have about 1 MiB and the same number of samples. If samples differ too much for that,
        a block starts with each sample that starts in another MiB of its file than the previous
        one.
        """
        edges = self.offsets[self.first_members[:-1]]
        if len(edges):
            sizes = np.diff(edges, append=self.offsets[-1] + self.sizes[-1])
            even = even_starts(sizes, block_bytes=BLOCK_BYTES)
            if even is not None:
                return even
        pieces = edges // BLOCK_BYTES
        starts = np.flatnonzero(np.diff(pieces, prepend=-1))
        return np.append(starts, self.sample_count).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class WebDatasetIndex:
    """The index of all tar files of a dataset.

    Attributes:
        shards: The files in the order of their samples, sorted by name.
        schema: The columns of all files, sorted by name.
        fingerprint: 32 hexadecimal digits.
    """

    shards: tuple[TarIndex, ...]
    schema: pa.Schema
    fingerprint: str


def build_index(files: Store, *, progress: Progress | None = None) -> WebDatasetIndex:
    """Read the headers of all tar files.

    Args:
        files: The store of the files.
        progress: Called with the number of files read and of all files.

    Raises:
        NotADatasetError: There are no tar files, or no samples in them.
        ShardCorruptError: A file is damaged.
        ConfigurationError: A member is too large or sparse, or there are too many columns.
    """
    entries = sorted(
        (entry for entry in files.list_entries() if is_tar_name(entry.name)),
        key=lambda entry: entry.name,
    )
    with ThreadPoolExecutor(INDEX_THREADS, thread_name_prefix="headrace-tar") as pool:
        # The store's own deadlines limit each wait.
        shards = []
        for shard in pool.map(lambda entry: _indexed(files, entry), entries):
            shards.append(shard)
            if progress is not None:
                progress(len(shards), len(entries))
    if not any(shard.sample_count for shard in shards):
        count = len(shards)
        what = "the tar file" if count == 1 else f"the {count} tar files"
        raise NotADatasetError(
            f"{what} at {files.url} {'has' if count == 1 else 'have'} no samples, but a dataset "
            "needs at least one: check the program that wrote there",
            url=files.url,
        )
    return index_of(shards)


def index_of(shards: Sequence[TarIndex]) -> WebDatasetIndex:
    """Return the index made from the headers of all files.

    Raises:
        ConfigurationError: There are too many columns, a sample is too large to be read, or its
            members are not neighbours.
    """
    for shard in shards:
        _check_samples(shard)
        _check_keys(shard)
    _check_one_tar_each(shards)
    return WebDatasetIndex(tuple(shards), _schema(shards), _fingerprint(shards))


@dataclass(slots=True)
class _MemberTable:
    """The members of a tar file found so far."""

    keys: list[str] = field(default_factory=list)
    first_members: array[int] = field(default_factory=lambda: array("q"))
    columns: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    names: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, column: str, member: Member) -> None:
        """Add a member."""
        if not self.keys or key != self.keys[-1]:
            self.keys.append(key)
            self.first_members.append(len(self.columns))
        self.columns.append(self.names.setdefault(column, len(self.names)))
        self.offsets.append(member.offset)
        self.sizes.append(member.size)

    def has(self, key: str, column: str) -> bool:
        """Return whether the current sample already has a column."""
        known = self.names.get(column)
        return (
            bool(self.keys)
            and key == self.keys[-1]
            and (known in self.columns[self.first_members[-1] :])
        )


def _indexed(files: Store, entry: ObjectEntry) -> TarIndex:
    found = _MemberTable()
    for key, column, member in _named(members_of(files, entry)):
        if member.problem is not None:
            raise ConfigurationError(
                f"shard {entry.name}, at byte {member.offset}: member {member.name[:200]!r} of a "
                f"sample {member.problem}",
                shard=entry.name,
                offset=member.offset,
            )
        if found.has(key, column):
            raise tar_damage(
                entry, f"a sample has a second member {member.name[:200]!r}", offset=member.offset
            )
        found.add(key, column, member)
        _check_limits(entry, member, found.names)
    return TarIndex(
        entry=entry,
        keys=_keys(entry, found.keys),
        first_members=np.array([*found.first_members, len(found.columns)], np.int64),
        columns=np.array(found.columns, np.int64),
        offsets=np.array(found.offsets, np.int64),
        sizes=np.array(found.sizes, np.int64),
        names=tuple(found.names),
    )


def _keys(entry: ObjectEntry, keys: list[str]) -> pa.StringArray:
    wide = pa.array(keys, pa.large_string())
    if wide.nbytes > _MAX_KEYS_BYTES:
        raise ConfigurationError(
            f"shard {entry.name} has names of {wide.nbytes} bytes, expected at most "
            f"{_MAX_KEYS_BYTES}; split it into several",
            shard=entry.name,
        )
    return cast("pa.StringArray", wide.cast(pa.string()))


def _check_samples(shard: TarIndex) -> None:
    """Refuse a sample that is too large for one read, including what lies between its members."""
    if not shard.sample_count:
        return
    edges = shard.first_members
    starts = shard.offsets[edges[:-1]]
    spans = shard.offsets[edges[1:] - 1] + shard.sizes[edges[1:] - 1] - starts
    at = int(spans.argmax())
    if spans[at] > MAX_VALUE_BYTES:
        raise ConfigurationError(
            f"shard {shard.entry.name}, at byte {starts[at]}: sample {str(shard.keys[at])[:200]!r} "
            f"has {spans[at]} bytes from its first to its last member; a sample is read at once "
            f"and may have at most {MAX_VALUE_BYTES}; split it",
            shard=shard.entry.name,
            offset=int(starts[at]),
        )


def _check_keys(shard: TarIndex) -> None:
    """Refuse a key that comes back after another: half of a sample, or a newer version of it."""
    keys = shard.keys
    if pc.count_distinct(keys).as_py() == len(keys):
        return
    order = pc.sort_indices(keys).to_numpy()  # equal keys in the order of the file
    ordered = keys.take(pa.array(order))
    at = int(order[1:][pc.equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)].min())
    key, offset = keys[at].as_py(), int(shard.offsets[shard.first_members[at]])
    raise ConfigurationError(
        f"shard {shard.entry.name}, at byte {offset}: sample {str(key)[:200]!r} comes back after "
        "other samples; the members of a sample must be neighbours, and its key must not be that "
        "of another one in the file, so write the file again, such as with `tar --sort=name`",
        shard=shard.entry.name,
        offset=offset,
    )


def _check_one_tar_each(shards: Sequence[TarIndex]) -> None:
    """Refuse tar files that hold different columns of the same samples."""
    firsts: dict[str, TarIndex] = {}
    for shard in shards:
        if not shard.sample_count:
            continue
        key = str(shard.keys[0].as_py())
        other = firsts.setdefault(key, shard)
        if not set(other.names) & set(shard.names):
            raise ConfigurationError(
                f"shard {shard.entry.name} has {', '.join(shard.names[:9])} of sample "
                f"{key[:200]!r}, and shard {other.entry.name} {', '.join(other.names[:9])}; all "
                "members of a sample must be neighbours in one file, so join them, or open one of "
                "the folders",
                shard=shard.entry.name,
            )


def _named(members: Iterator[Member]) -> Iterator[tuple[str, str, Member]]:
    """Yield the key and the column of each member that is part of a sample."""
    for member in members:
        folder, slash, file = member.name.rpartition("/")
        base, dot, column = file.partition(".")
        if base and dot and column and not file.startswith("__"):
            yield folder + slash + base, column.lower(), member


def _check_limits(entry: ObjectEntry, member: Member, names: dict[str, int]) -> None:
    if member.size > MAX_VALUE_BYTES:
        raise ConfigurationError(
            f"shard {entry.name}, at byte {member.offset}: member {member.name[:200]!r} has "
            f"{member.size} bytes, expected at most {MAX_VALUE_BYTES}; split it",
            shard=entry.name,
        )
    if len(member.name) > _MAX_NAME_BYTES:
        raise ConfigurationError(
            f"shard {entry.name}, at byte {member.offset}: the name "
            f"{member.name[:200]!r}… "
            f"has {len(member.name)} characters, expected at most {_MAX_NAME_BYTES}",
            shard=entry.name,
        )
    if len(names) > MAX_COLUMNS:
        raise _too_many_columns(entry.name)


def _too_many_columns(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} has more than {MAX_COLUMNS} different name endings, each of which is a column; "
        "write names as KEY.COLUMN, without a dot in KEY"
    )


def _schema(shards: Sequence[TarIndex]) -> pa.Schema:
    sample_count = sum(shard.sample_count for shard in shards)
    values: dict[str, int] = {}
    for shard in shards:
        counts = np.bincount(shard.columns, minlength=len(shard.names))
        for name, count in zip(shard.names, counts.tolist(), strict=True):
            values[name] = values.get(name, 0) + count
    if len(values) > MAX_COLUMNS:
        raise _too_many_columns("the dataset")
    fields = [
        column_field(name, nullable=count < sample_count)
        for name, count in sorted(values.items())
        if name != KEY
    ]
    return pa.schema([pa.field(KEY, pa.string(), nullable=False), *fields])


def _fingerprint(shards: Sequence[TarIndex]) -> str:
    digest = hashlib.blake2b(_PREFIX, digest_size=16)
    for shard in shards:
        entry = shard.entry
        line = f"{entry.name}\t{entry.stored_bytes}\t{entry.content_version}\t{shard.names!r}\n"
        digest.update(line.encode())
        for part in (shard.first_members, shard.columns, shard.offsets, shard.sizes):
            digest.update(hashlib.blake2b(part.astype("<i8").tobytes(), digest_size=16).digest())
        for key in shard.keys.to_pylist():
            digest.update(f"{key!r}\n".encode())
    return digest.hexdigest()
