"""Claims about payloads in several messages: every byte in its place, and the library's hash."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import InternalError
from headrace.server.batch.chunked_payload import PartPieces, PayloadParts
from headrace.server.kernels.loader import KERNELS, Loader

_KIB = 1024


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    KERNELS.load()
    assert KERNELS.wait(120)


def _parts_of(
    size: int, part_bytes: int, *, kernels: Loader = KERNELS
) -> tuple[PayloadParts, list[np.ndarray]]:
    parts = [
        np.zeros(min(part_bytes, size - begin), np.uint8) for begin in range(0, size, part_bytes)
    ]
    return PayloadParts(list(parts), part_bytes=part_bytes, kernels=kernels), parts


@settings(deadline=None)
@given(
    before=st.integers(0, 5000),
    lengths=st.lists(st.integers(0, 3000) | st.just(200_000), min_size=1, max_size=80),
    after=st.integers(0, 3000),
    part_bytes=st.sampled_from([_KIB, 3 * _KIB, 64 * _KIB, 1000, 65_000]),
)
@example(before=0, lengths=[_KIB, _KIB], after=0, part_bytes=_KIB)  # the last block is full
@example(before=0, lengths=[_KIB, 1], after=0, part_bytes=_KIB)  # its last stripe begins before it
@example(before=70, lengths=[4 * _KIB - 40], after=0, part_bytes=2 * _KIB)
def test_spans_and_hash_are_those_of_the_whole(
    before: int, lengths: list[int], after: int, part_bytes: int
) -> None:
    """Bytes, then spans, then bytes: the parts join to them, and the hash is the library's."""
    rng = np.random.default_rng(before)
    memory = rng.integers(0, 256, 300_000, dtype=np.uint8)
    sizes = np.array(lengths, np.int64)
    begins = rng.integers(0, memory.size - sizes + 1)
    spans = [memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
    wanted = np.concatenate([memory[:before], *spans, memory[:after]])
    middle = before + int(sizes.sum())
    payload, parts = _parts_of(max(wanted.size, part_bytes + 1), part_bytes)
    wanted = np.resize(wanted, max(wanted.size, part_bytes + 1))

    _write(payload, wanted, 0, before)
    pieces = payload.pieces(before, middle)
    is_compiled = isinstance(pieces, PartPieces) and pieces.copy_spans(memory, begins, sizes)
    if not is_compiled:
        _write(payload, wanted, before, middle)
    _write(payload, wanted, middle, wanted.size)

    assert is_compiled == (middle > part_bytes and not part_bytes % _KIB)
    assert wanted.tobytes() == b"".join(part.tobytes() for part in parts)
    assert xxhash.xxh3_64_intdigest(wanted.tobytes()) == payload.end()


@pytest.mark.parametrize(
    ("begin", "length"),
    [(-1, 10), (0, -1), (9_990, 11), ((1 << 63) - 5, 10), (0, 5_001), (0, 1 << 62)],
    ids=["before", "negative", "behind", "past-all-numbers", "too-long", "far-too-long"],
)
def test_tables_that_lie_are_refused(begin: int, length: int) -> None:
    """What points outside of the memory, or is more than there is room for, is not copied."""
    memory = np.ones(10_000, np.uint8)
    payload, parts = _parts_of(8 * _KIB, 2 * _KIB)
    pieces = payload.pieces(0, 5_000)
    assert isinstance(pieces, PartPieces)

    with pytest.raises(InternalError, match="restart the server"):
        pieces.copy_spans(memory, np.array([begin]), np.array([length]))

    assert not any(part.any() for part in parts)


def test_spans_that_leave_a_gap_are_refused() -> None:
    """What nobody wrote is what the memory held before, and is not sent."""
    payload, _ = _parts_of(8 * _KIB, 2 * _KIB)
    pieces = payload.pieces(0, 5_000)
    assert isinstance(pieces, PartPieces)

    with pytest.raises(InternalError, match="restart the server"):
        pieces.copy_spans(np.ones(10_000, np.uint8), np.array([0]), np.array([4_999]))


def test_kernels_that_come_in_the_middle_of_a_payload_change_nothing() -> None:
    """Begun by the library, a hash stays the library's."""
    late = Loader("nothing", "nothing")
    content = np.random.default_rng(3).integers(0, 256, 8 * _KIB, dtype=np.uint8)
    payload, parts = _parts_of(8 * _KIB, 2 * _KIB, kernels=late)

    _write(payload, content, 0, 3_000)
    late.module = KERNELS.module
    pieces = payload.pieces(3_000, 8 * _KIB)
    assert isinstance(pieces, PartPieces)
    assert not pieces.copy_spans(content, np.array([3_000]), np.array([8 * _KIB - 3_000]))
    _write(payload, content, 3_000, 8 * _KIB)

    assert content.tobytes() == b"".join(part.tobytes() for part in parts)
    assert xxhash.xxh3_64_intdigest(content.tobytes()) == payload.end()


def _write(payload: PayloadParts, content: np.ndarray, begin: int, end: int) -> None:
    at = begin
    for piece in payload.pieces(begin, end):
        piece[:] = content[at : at + piece.size]
        at += piece.size
    assert at == end
