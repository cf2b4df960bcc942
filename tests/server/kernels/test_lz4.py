"""Claims about expanding LZ4: it is what the format says, and hostile frames stay where they are.

Frames are made by hand here, so that they also say what no compressor would. `_expanded` is the
format's description in a few lines, and as slow as that; liblz4 makes what is not hostile.
"""

from __future__ import annotations

import functools
import struct

import lz4.block
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.server.kernels.loader import LOOPS

_MAGIC = 0x184D2204
_VERSION, _HAS_SIZE, _BLOCKS_HAVE_HASH, _HAS_HASH = 0x40, 0x08, 0x10, 0x04
_STORED = 1 << 31
_LEAST_MATCH, _GOES_ON, _FULL = 4, 15, 255
_GUARD = 300
_FURTHEST = (1 << 16) - 1
_EVERY = 40_000
_MATCHES = ((90, bytes(80)), (7, bytes(100)), (18, b""), (300, bytes(5)))
"""Lengths, and the literals after them."""

_Sequence = tuple[bytes, int, int]
"""Literals, and the offset and the length of a match."""


def _frame(*blocks: bytes, flags: int = _VERSION) -> bytes:
    """Return a frame of blocks, with checksums that nobody looks at if the flags state some."""
    hash_ = b"hash" if flags & _BLOCKS_HAVE_HASH else b""
    body = b"".join(struct.pack("<I", len(block)) + block + hash_ for block in blocks)
    size = bytes(8) if flags & _HAS_SIZE else b""
    end = bytes(4) + (b"hash" if flags & _HAS_HASH else b"")
    return struct.pack("<IBB", _MAGIC, flags, 0x40) + size + b"\0" + body + end


def _length(value: int) -> bytes:
    """Return what follows a token for a length of 15 or more."""
    if value < _GOES_ON:
        return b""
    full, rest = divmod(value - _GOES_ON, _FULL)
    return b"\xff" * full + bytes([rest])


def _block(sequences: list[_Sequence], last: bytes) -> bytes:
    """Encode sequences, and the literals after them."""
    out = bytearray()
    for literals, offset, match in sequences:
        more = match - _LEAST_MATCH
        out.append(min(len(literals), _GOES_ON) << 4 | min(more, _GOES_ON))
        out += _length(len(literals)) + literals + struct.pack("<H", offset) + _length(more)
    out.append(min(len(last), _GOES_ON) << 4)
    return bytes(out) + _length(len(last)) + last


def _expanded(sequences: list[_Sequence], last: bytes, before: bytes = b"") -> bytes | None:
    """Return what sequences mean, or None if an offset is 0 or leads to before the content."""
    out = bytearray(before)
    for literals, offset, match in sequences:
        out += literals
        if not 1 <= offset <= len(out):
            return None
        pattern = bytes(out[-offset:][:match])
        out += (pattern * (match // len(pattern) + 1))[:match]
    return bytes(out) + last


def _ours(frame: bytes, size: int) -> bytes | None:
    """Expand a frame between guards; return the content, or None if it is refused."""
    memory = np.full(size + 2 * _GUARD, 0xAB, np.uint8)
    out = memory[_GUARD : _GUARD + size]
    is_whole = LOOPS.expand(np.frombuffer(frame, np.uint8), out)
    assert (memory[:_GUARD] == 0xAB).all()
    assert (memory[_GUARD + size :] == 0xAB).all()
    return out.tobytes() if is_whole else None


_LITERALS = st.binary(max_size=40) | st.integers(0, 400).map(lambda size: bytes(range(256)) * size)
_SEQUENCES = st.lists(
    st.tuples(
        _LITERALS.map(lambda literals: literals[:700]),
        st.integers(0, 40) | st.integers(0, 2000),
        st.integers(_LEAST_MATCH, 40) | st.integers(_LEAST_MATCH, 900),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=200)
@given(sequences=_SEQUENCES, last=_LITERALS, more=st.integers(-70, 70))
@example(sequences=[(b"x", 1, 5000)], last=b"", more=0)
@example(sequences=[], last=b"", more=0)
def test_sequences_are_what_the_format_says(
    sequences: list[_Sequence], last: bytes, more: int
) -> None:
    """Any literals and matches, to memory of that size, and of no other."""
    frame, wanted = _frame(_block(sequences, last)), _expanded(sequences, last)
    size = 1000 if wanted is None else len(wanted)

    assert wanted == _ours(frame, size)
    if max(0, size + more) != size:
        assert _ours(frame, max(0, size + more)) is None


@pytest.mark.parametrize("written", [1, 15, 16, 40, 3000, _EVERY, 70_000])
def test_every_offset_is_followed_or_refused(written: int) -> None:
    """From 0 to the largest of the format, with short and long matches, far from the end and near.

    What lies before a match came in a block before, as it is where blocks are of 64 KiB.
    """
    before = np.random.default_rng(written).bytes(written)
    stored = struct.pack("<I", len(before) | _STORED) + before
    whole = np.concatenate([np.frombuffer(before, np.uint8), np.zeros(600, np.uint8)])
    step = 1 if written == _EVERY else 61
    near = {*range(1, 300), written - 1, written} & set(range(1, written + 1))
    for offset in {0, *near, *range(1, _FURTHEST + 1, step), _FURTHEST, written + 1}:
        if offset > _FURTHEST:
            continue
        for match, last in _MATCHES if offset in near else _MATCHES[:1]:
            frame = _frame(_block([(b"", offset, match)], last))
            found = np.frombuffer(frame[:7] + stored + frame[7:], np.uint8)
            size = written + match + len(last)
            if not 1 <= offset <= written:
                assert not LOOPS.expand(found, whole[:size]), offset
                continue
            whole[written:] = 0xAB
            assert LOOPS.expand(found, whole[:size]), offset
            pattern = before[written - offset :][:match]
            wanted = (pattern * (match // len(pattern) + 1))[:match] + last
            assert wanted == whole[written:size].tobytes(), offset
            assert (whole[size:] == 0xAB).all()


@pytest.mark.parametrize("offset", [1, 3, 7, 8, 13, 15, 16, 33])
def test_nothing_is_copied_beyond_the_end(offset: int) -> None:
    """Matches and literals of any short length, any few bytes before the end."""
    start = bytes(range(40))
    for size in range(_LEAST_MATCH, 80):
        for rest in range(70):
            last = start[:rest]
            for sequences in (
                [(start, offset, size)],
                [(start, offset, 5), (bytes(size), offset, 4)],
            ):
                wanted = _expanded(sequences, last)
                assert wanted is not None
                assert wanted == _ours(_frame(_block(sequences, last)), len(wanted))


@settings(deadline=None, max_examples=150)
@given(
    content=st.binary(max_size=3000),
    repeats=st.integers(1, 100),
    level=st.sampled_from([0, 9]),
    data=st.data(),
)
def test_what_liblz4_makes_is_expanded(
    content: bytes, repeats: int, level: int, data: st.DataObject
) -> None:
    """A block of any content, by its fast and its thorough compressor, and what Arrow frames."""
    whole = (content * repeats)[: 1 << 18]
    cut = data.draw(st.integers(0, len(whole)))
    whole += whole[cut:]
    mode = "high_compression" if level else "default"
    block = lz4.block.compress(whole, mode=mode, store_size=False)

    assert whole == _ours(_frame(block), len(whole))
    assert whole == _ours(pa.Codec("lz4").compress(whole, asbytes=True), len(whole))


@functools.cache
def _frames() -> dict[str, tuple[bytes, bytes]]:
    """Return contents of each kind, and their frames."""
    rng = np.random.default_rng(7)
    text = b" ".join(rng.choice([b"river", b"race", b"mill", b"weir", b"sluice"], 700).tolist())
    contents = {
        "text": text,
        "zeros": bytes(9000),
        "floats": rng.integers(0, 50, 900).astype(np.float32).tobytes(),
        "runs": bytes(np.repeat(rng.integers(0, 9, 90), rng.integers(1, 90, 90)).astype(np.uint8)),
        "three": b"abc" * 1000 + rng.bytes(50),
    }
    flags = _VERSION | _HAS_SIZE | _BLOCKS_HAVE_HASH | _HAS_HASH
    return {
        name: (whole, _frame(lz4.block.compress(whole, store_size=False), flags=flags))
        for name, whole in contents.items()
    }


@pytest.mark.parametrize("name", _frames())
def test_every_truncation_is_refused(name: str) -> None:
    """A frame that ends too early, and one whose block does though it says so."""
    whole, frame = _frames()[name]
    block = lz4.block.compress(whole, store_size=False)

    assert whole == _ours(frame, len(whole))
    for cut in range(len(frame)):
        # Its own memory, of which a sanitizer knows the end.
        assert _ours(bytes(bytearray(frame[:cut])), len(whole)) is None
    for cut in range(len(block)):
        assert _ours(_frame(block[:cut]), len(whole)) is None


@pytest.mark.parametrize("name", _frames())
def test_other_memory_than_the_content_needs_is_refused(name: str) -> None:
    """However little more or less it is: near the end, sequences are copied byte by byte."""
    whole, frame = _frames()[name]

    for more in [*range(-200, 0), *range(1, 200)]:
        assert _ours(frame, len(whole) + more) is None


_TAIL = bytes(100)
_HOSTILE = {
    "01 literals without end": b"\xf0" + b"\xff" * 1000,
    "02 literals without end, room after": b"\xf0" + b"\xff" * 1000 + b"\0",
    "03 more literals than there are": b"\xf0" + b"\xff" * 3 + b"\0" + _TAIL,
    "04 a match without end": b"\x4fabcd\x04\0" + b"\xff" * 1000,
    "05 a match beyond the memory": b"\x4fabcd\x04\0" + b"\xff" * 100 + b"\0" + _TAIL,
    "06 a near match beyond the memory": b"\x4fabcd\x01\0" + b"\xff" * 100 + b"\0" + _TAIL,
    "07 a match of 4 GiB": b"\x4fabcd\x02\0" + b"\xff" * ((1 << 32) // 255) + b"\0" + _TAIL,
    "08 literals of 4 GiB": b"\xf0" + b"\xff" * ((1 << 32) // 255) + b"\0" + _TAIL,
    "09 an offset of 0": b"\x40abcd\0\0" + b"\0" + _TAIL,
    "10 an offset of 0, a long match": b"\x4fabcd\0\0\x50\0" + _TAIL,
    "11 an offset to before the content": b"\x40abcd\x05\0" + b"\0" + _TAIL,
    "12 an offset to before the content, a long match": b"\x4fabcd\x05\0\x50\0" + _TAIL,
    "13 a match at the end": b"\x40abcd\x04\0",
    "14 half an offset": b"\x40abcd\x04",
    "15 nothing": b"",
}


@pytest.mark.parametrize("name", _HOSTILE)
@pytest.mark.parametrize("size", [0, 8, 64, 108, 1000, 5000])
def test_a_hostile_block_is_refused(name: str, size: int) -> None:
    """Whatever the memory is, nothing beside it is touched."""
    assert _ours(_frame(_HOSTILE[name]), size) is None


@pytest.mark.parametrize(
    "change",
    [
        {0: 0x05},
        {4: 0x80},
        {4: _VERSION | 0x01},
        {4: _VERSION | 0x02},
        {4: _VERSION | _HAS_SIZE},
        {4: _VERSION | _HAS_HASH},
        {10: 0x7F},
        {10: 0xFF},
        {7: 0, 8: 0},
    ],
    ids=str,
)
def test_a_frame_of_another_kind_is_refused(change: dict[int, int]) -> None:
    """Other magic, versions and flags, and blocks that say they are longer than the frame."""
    frame = bytearray(_frame(_block([(b"headrace", 8, 500)], b"headrace")))
    assert _ours(bytes(frame), 516) is not None
    for at, value in change.items():
        frame[at] = value

    assert _ours(bytes(frame), 516) is None


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_frame_with_changed_bytes_stays_in_its_memory(data: st.DataObject) -> None:
    """It may be expanded to something else; nothing beside it is read or written."""
    whole, frame = _frames()[data.draw(st.sampled_from(sorted(_frames())))]
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(frame) - 1))
        changed[at] = data.draw(st.sampled_from([0, 1, 15, 0x4F, 0xF0, 0xFF, changed[at] ^ 1]))

    _ours(bytes(changed), len(whole) + data.draw(st.integers(-80, 80)))
