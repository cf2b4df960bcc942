"""A numbered set of files that lie: each is a typed error with its place, and no crash.

01-16 ``headrace.json``; 17-22 damaged tables; 23-24 names that lead out of the root; 25-29 counts
that lie; 30-33 blocks outside their shard or over one another; 34-66 blocks whose inside lies
(`test_hostile_blocks`); 67-73 tables whose inside lies: bombs, versions, UTF-8, dictionaries; 74-80
shards whose blocks are not as even as they say; 81 a version that is read no more.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import HeadraceError, ManifestCorruptError
from headrace.storage import Compression, open_dataset, open_store
from headrace.storage.dataset.manifest import Manifest, encode_shard_table
from headrace.storage.dataset.read_manifest import read_block_rows, read_manifest
from headrace.storage.shard.block_table import encode_block_table
from headrace.storage.shard.fingerprint import fingerprint_of
from support.shards import numbered_batch, pointer_of, write_shards_of

_SAMPLES = 120


def _write(folder: Path) -> None:
    shards = [(0, 70), (70, 115), (115, _SAMPLES)]  # the last one is one block
    write_shards_of(str(folder), [numbered_batch(*shard) for shard in shards])


def _read_all(folder: Path) -> list[dict[str, object]]:
    with open_dataset(str(folder)) as dataset:
        blocks, _ = dataset.locate(np.arange(dataset.sample_count))
        batches = [dataset.read_block(int(block)) for block in np.unique(blocks)]
    return pa.Table.from_batches(batches).to_pylist()


def _edit(**changes: object) -> Callable[[Path], None]:
    """Change ``headrace.json`` at its top."""

    def edit(folder: Path) -> None:
        path = folder / "headrace.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def _edit_version(**changes: object) -> Callable[[Path], None]:
    """Change the one version in ``headrace.json``."""

    def edit(folder: Path) -> None:
        path = folder / "headrace.json"
        content = json.loads(path.read_text())
        content["versions"][0].update(changes)
        path.write_text(json.dumps(content))

    return edit


def _overwrite(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def overwrite(folder: Path) -> None:
        (path,) = folder.glob(pattern)
        path.write_bytes(change(path.read_bytes()))

    return overwrite


def _forge(
    change: Callable[[Manifest], Manifest] | None = None,
    rows: Callable[[NDArray[np.void]], None] | None = None,
) -> Callable[[Path], None]:
    """Write a manifest that lies, with a fingerprint, digests and sizes that agree with it."""

    def forge(folder: Path) -> None:
        store = open_store(str(folder))
        pointer = pointer_of(store)
        entry = pointer.current
        manifest = read_manifest(store, entry)
        blocks = read_block_rows(store, entry, manifest)
        if rows is not None:
            rows(blocks)
        content, pages = encode_block_table(blocks)
        manifest = replace(manifest, pages=pages)
        if change is not None:
            manifest = change(manifest)
        digest = fingerprint_of(
            served=manifest.schema,
            stored=manifest.stored_schema,
            sample_counts=manifest.sample_counts,
            raw_bytes=manifest.raw_bytes,
            block_counts=manifest.block_counts,
            block_samples=manifest.block_samples,
            page_digests=[bytes.fromhex(page.digest) for page in manifest.pages],
        )
        shards = encode_shard_table(manifest)
        store.write(entry.shards.name, shards)
        store.write(entry.blocks.name, content)
        _edit(fingerprint=digest)(folder)
        _edit_version(
            fingerprint=digest,
            shards={"name": entry.shards.name, "stored_bytes": len(shards)},
            blocks={"name": entry.blocks.name, "stored_bytes": len(content)},
        )(folder)

    return forge


def _flip_a_checksum(content: bytes) -> bytes:
    message = content.rindex(b"\xff\xff\xff\xff", 0, content.rindex(b"\xff\xff\xff\xff"))
    last = content.rindex(b"\xff\xff\xff\xff") - 1
    assert message < last
    return content[:last] + bytes([content[last] ^ 1]) + content[last + 1 :]


def _set(column: str, row: int, value: int) -> Callable[[NDArray[np.void]], None]:
    def change(rows: NDArray[np.void]) -> None:
        rows[column][row] = value

    return change


def _set_shard(column: str, value: int, *, shard: int = 0) -> Callable[[Manifest], Manifest]:
    def change(manifest: Manifest) -> Manifest:
        values: NDArray[np.int64] = getattr(manifest, column).copy()
        values[shard] = value
        changed = {column: values}
        return replace(manifest, **changed)  # type: ignore[arg-type] # the column is an array

    return change


def _one_sample_more(manifest: Manifest) -> Manifest:
    """State a sample more a block, of which as many blocks are needed."""
    per_block = int(manifest.block_samples[1])
    assert -(-45 // (per_block + 1)) == manifest.block_counts[1]
    return _set_shard("block_samples", per_block + 1, shard=1)(manifest)


def _set_name(name: str) -> Callable[[Manifest], Manifest]:
    return lambda manifest: replace(manifest, names=pa.array([name] * manifest.shard_count))


def _file_of(batch: pa.RecordBatch, codec: Compression) -> bytes:
    options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _shard_table(
    change: Callable[[pa.RecordBatch], pa.RecordBatch], codec: Compression = "none"
) -> Callable[[Path], None]:
    """Write the shard table again, with the size that the pointer then states."""

    def edit(folder: Path) -> None:
        (path,) = folder.glob("manifests/*.shards.arrow")
        batch = change(pa.ipc.open_file(path.read_bytes()).get_batch(0))
        content = _file_of(batch, codec)
        path.write_bytes(content)
        name = path.relative_to(folder).as_posix()
        _edit_version(shards={"name": name, "stored_bytes": len(content)})(folder)

    return edit


def _metadata(key: str, value: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        found = dict(batch.schema.metadata or {})
        return batch.replace_schema_metadata({**found, key.encode(): value(found[key.encode()])})

    return _shard_table(change)


def _schema_text(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda text: base64.b64encode(change(base64.b64decode(text)))


def _names_of_noise(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = pa.array([b"\xff\xfe"] * batch.num_rows, pa.binary()).view(pa.string())
    return pa.RecordBatch.from_arrays([names, *batch.columns[1:]], schema=batch.schema)


def _names_of_dictionary(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["name"] = columns["name"].dictionary_encode()
    return pa.RecordBatch.from_pydict(columns, metadata=batch.schema.metadata)


def _compressed_blocks(folder: Path) -> None:
    """Write the block table compressed, with a page that is as long as it is."""
    (path,) = folder.glob(_BLOCKS)
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    content = _file_of(batch, "zstd")
    start = 8 + batch.schema.serialize().size
    length = content.rindex(b"\xff\xff\xff\xff\0\0\0\0") - start
    path.write_bytes(content)

    def pages(text: bytes) -> bytes:
        [[_, _, first_sample, digest]] = json.loads(text)
        return json.dumps([[start, length, first_sample, digest]]).encode()

    _metadata("headrace.pages", pages)(folder)


_BLOCKS = "manifests/*.blocks.arrow"
_SHARDS = "manifests/*.shards.arrow"
_TABLE = {"name": "manifests/x", "stored_bytes": 10}
_DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "01 empty pointer": (_overwrite("headrace.json", lambda _: b""), "Expecting value"),
    "02 truncated pointer": (_overwrite("headrace.json", lambda c: c[:-9]), r"headrace\.json"),
    "03 pointer of noise": (_overwrite("headrace.json", lambda _: b"\xff\xfe\0"), "decode"),
    "04 pointer nested too deep": (
        _overwrite("headrace.json", lambda _: b"[" * 100_000),
        "recursion",
    ),
    "05 pointer too large": (
        _overwrite("headrace.json", lambda c: c + b" " * (17 << 20)),
        "more than",
    ),
    "06 another format": (_edit(format="tar"), "'tar' found, 'headrace' expected"),
    "07 a version to come": (_edit(version=2), "a newer headrace may be able to read it"),
    "08 a source to come": (_edit(source="lance"), "'lance' found"),
    "09 no versions": (_edit(versions=[]), "no list of versions"),
    "10 fingerprint of another version": (
        _edit(fingerprint="0" * 32),
        "differs from that of the last",
    ),
    "11 fingerprint of no digits": (_edit_version(fingerprint="../../x"), "hexadecimal"),
    "12 table outside the root": (
        _edit_version(shards={"name": "../x", "stored_bytes": 9}),
        r"'\.\./x' of shards",
    ),
    "13 absolute table": (
        _edit_version(blocks={"name": "/etc/passwd", "stored_bytes": 9}),
        "'/etc/passwd' of blocks",
    ),
    "14 table that is not there": (_edit_version(shards=_TABLE), "which is missing"),
    "15 size below zero": (
        _edit_version(shards={"name": "x", "stored_bytes": -1}),
        "expected an integer",
    ),
    "16 size too large for memory": (
        _edit_version(shards={"name": "x", "stored_bytes": 1 << 60}),
        "expected an integer",
    ),
    "17 truncated shard table": (_overwrite(_SHARDS, lambda c: c[:-8]), "has .* bytes"),
    "18 shard table of another size": (_overwrite(_SHARDS, lambda c: c + b"x"), "has .* bytes"),
    "19 shard table of noise": (_overwrite(_SHARDS, lambda c: b"x" * len(c)), "shard table"),
    "20 flipped count": (
        _overwrite(_SHARDS, lambda c: c.replace((70).to_bytes(8, "little"), b"G" + b"\0" * 7)),
        "fingerprint .* found",
    ),
    "21 flipped row of blocks": (
        _overwrite(_BLOCKS, _flip_a_checksum),
        "block table",
    ),
    "22 truncated block table": (_overwrite(_BLOCKS, lambda c: c[: len(c) // 2]), "bytes found"),
    "23 shard outside the root": (_forge(_set_name("../../x.arrow")), "name .* of shard 0"),
    "24 absolute shard": (_forge(_set_name("/etc/passwd")), "name .* of shard 0"),
    "25 shard without samples": (_forge(_set_shard("sample_counts", 0)), "sample_counts of shard"),
    "26 negative raw bytes": (_forge(_set_shard("raw_bytes", -1)), "raw_bytes of shard 0 is -1"),
    "27 sums that wrap around": (_forge(_set_shard("raw_bytes", 2**63 - 1)), "exceeds 2"),
    "28 blocks that no page holds": (_forge(_set_shard("block_counts", 9000)), "pages found"),
    "29 samples of blocks and shards differ": (
        _forge(_set_shard("sample_counts", 69)),
        "sample counts of blocks and shards differ",
    ),
    "30 block past the end": (
        _forge(rows=_set("offset", 1, 1 << 40)),
        "a block past the end of its shard",
    ),
    "31 negative offset": (_forge(rows=_set("offset", 0, -8)), "negative offset"),
    "32 overlapping blocks": (_forge(rows=_set("offset", 1, 400)), "blocks that overlap"),
    "33 block without bytes": (_forge(rows=_set("stored_bytes", 0, 0)), "negative offset"),
    "67 compressed shard table": (
        _shard_table(lambda batch: batch, "zstd"),
        "compressed record batch",
    ),
    "68 compressed block table": (_compressed_blocks, "compressed page found"),
    "69 shard table of a version to come": (
        _metadata("headrace.version", lambda _: b"3"),
        "a newer headrace may be able to read it",
    ),
    "70 shard names that are no UTF-8": (_shard_table(_names_of_noise), "UTF8"),
    "71 column names that are no UTF-8": (
        _metadata("headrace.schema", _schema_text(lambda c: c.replace(b"number", b"\xff\xfember"))),
        "utf-8",
    ),
    "72 shard table with a dictionary": (_shard_table(_names_of_dictionary), "dictionaries"),
    "73 pages that are no list": (_metadata("headrace.pages", lambda _: b"{}"), "is not a list"),
    "74 blocks that differ where there is one": (
        _forge(_set_shard("block_samples", 0, shard=2)),
        "block_samples of shard 2 is 0, which does not divide 5 samples into 1 blocks",
    ),
    "75 negative block samples": (
        _forge(_set_shard("block_samples", -1)),
        "block_samples of shard 0 is -1, which does not divide 70 samples",
    ),
    "76 block samples beyond any block": (
        _forge(_set_shard("block_samples", 2**62)),
        "block_samples of shard 0 is 4611686018427387904, which does not divide",
    ),
    "77 block samples of another number of blocks": (
        _forge(_set_shard("block_samples", 69)),
        "block_samples of shard 0 is 69, which does not divide",
    ),
    "78 one block of more than its samples": (
        _forge(_set_shard("block_samples", 6, shard=2)),
        "block_samples of shard 2 is 6, which does not divide 5 samples into 1 blocks",
    ),
    "79 block samples that blocks do not have": (
        _forge(_one_sample_more),
        "sample counts of blocks differ from their shard's block_samples",
    ),
    "80 shard table without block samples": (
        _shard_table(lambda batch: batch.drop_columns(["block_samples"])),
        "columns .* found, .*'block_samples'.* expected",
    ),
    "81 shard table of a version before ours": (
        _metadata("headrace.version", lambda _: b"1"),
        "manifest version 1 found, but this headrace reads 2; restore it or convert",
    ),
}


@pytest.mark.parametrize("name", _DAMAGED)
def test_damaged_manifests_are_refused(tmp_path: Path, name: str) -> None:
    """A manifest that is damaged, or lies with care, is refused with its place."""
    damage, message = _DAMAGED[name]
    _write(tmp_path)
    damage(tmp_path)

    with pytest.raises(ManifestCorruptError, match=message) as caught:
        _read_all(tmp_path)

    assert str(tmp_path) in caught.value.metadata["place"]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("checksum", 7, "checksum .* found, 0000000000000007 expected"),
        ("stored_bytes", 40, "checksum .* found"),
    ],
)
def test_blocks_that_are_not_as_stated_are_refused(
    tmp_path: Path, column: str, value: int, message: str
) -> None:
    """A manifest may agree with itself and not with the shard; the block is then refused."""
    _write(tmp_path)
    _forge(rows=_set(column, 0, value))(tmp_path)

    with pytest.raises(HeadraceError, match=rf"shard-00000\.arrow, block 0, at byte .*{message}"):
        _read_all(tmp_path)


def test_a_truncated_shard_is_told_with_both_lengths(tmp_path: Path) -> None:
    """A shard that ends early: what was found, what was wanted, where."""
    _write(tmp_path)
    shard = tmp_path / "shards" / "shard-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:500])

    with pytest.raises(HeadraceError, match=r"block 0, at byte .* bytes found, .* expected"):
        _read_all(tmp_path)


@settings(max_examples=60, deadline=None)
@given(
    pattern=st.sampled_from(["headrace.json", _SHARDS, _BLOCKS, "shards/shard-00000.arrow"]),
    where=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
)
def test_any_flipped_byte_is_seen_or_harmless(pattern: str, where: float, flip: int) -> None:
    """Whatever byte of whatever file changes: the same samples, or a typed error."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder)
        (path,) = folder.glob(pattern)
        content = bytearray(path.read_bytes())
        content[int(where * len(content))] ^= flip
        path.write_bytes(content)
        try:
            found = _read_all(folder)
        except HeadraceError:
            return

    assert numbered_batch(0, _SAMPLES).to_pylist() == found
