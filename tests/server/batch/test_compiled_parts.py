"""Claims about payloads in several messages: every byte in its place, and the library's hash."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import InternalError
from headrace.server.batch.compiled_writer import CompiledParts
from headrace.server.batch.targets import Parts

_KIB = 1024


def _parts_of(size: int, part_bytes: int) -> tuple[CompiledParts, Parts]:
    target = Parts()
    target.hash_to = np.zeros(8, np.uint8)
    target.parts = [
        np.zeros(min(part_bytes, size - start), np.uint8) for start in range(0, size, part_bytes)
    ]
    return CompiledParts(target, size), target


@settings(deadline=None)
@given(
    before=st.integers(0, 5000),
    lengths=st.lists(st.integers(0, 3000) | st.just(70_000), min_size=1, max_size=40),
    after=st.integers(0, 3000),
    part_bytes=st.sampled_from([_KIB, 3 * _KIB, 64 * _KIB]),
)
@example(before=0, lengths=[_KIB, _KIB], after=0, part_bytes=_KIB)  # the last block is full
@example(before=0, lengths=[_KIB, 1], after=0, part_bytes=_KIB)  # its last stripe begins before it
@example(before=70, lengths=[4 * _KIB - 40], after=0, part_bytes=2 * _KIB)
def test_spans_and_hash_are_those_of_the_whole(
    before: int, lengths: list[int], after: int, part_bytes: int
) -> None:
    """Bytes, then spans, then bytes: the parts join to them, and the hash is the library's."""
    rng = np.random.default_rng(before)
    memory = rng.integers(0, 256, 100_000, dtype=np.uint8)
    sizes = np.array(lengths, np.int64)
    starts = rng.integers(0, memory.size - sizes + 1)
    spans = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    wanted = np.concatenate([memory[:before], *spans, memory[:after]])
    middle = before + int(sizes.sum())
    wanted = np.resize(wanted, max(wanted.size, part_bytes + 1))
    payload, target = _parts_of(wanted.size, part_bytes)

    payload.put(0, wanted[:before])
    payload.put_spans(before, memory, starts, sizes)
    payload.put(middle, wanted[middle:])
    payload.end()

    assert wanted.tobytes() == b"".join(part.tobytes() for part in target.parts)
    assert xxhash.xxh3_64_digest(wanted.tobytes()) == target.hash_to.tobytes()[::-1]


@pytest.mark.parametrize(
    ("start", "length"),
    [(-1, 10), (0, -1), (9_990, 11), ((1 << 63) - 5, 10), (0, 8_193), (0, 1 << 62)],
    ids=["before", "negative", "behind", "past-all-numbers", "too-long", "far-too-long"],
)
def test_tables_that_lie_are_refused(start: int, length: int) -> None:
    """What points outside of the memory, or is more than there is room for, is not copied."""
    memory = np.ones(10_000, np.uint8)
    payload, target = _parts_of(8 * _KIB, 2 * _KIB)

    with pytest.raises(InternalError, match="restart the server"):
        payload.put_spans(0, memory, np.array([start]), np.array([length]))

    assert not any(part.any() for part in target.parts)


def test_gaps_between_buffers_are_zeros() -> None:
    """Equal requests give equal bytes, whatever the memory held before."""
    payload, target = _parts_of(8 * _KIB, 2 * _KIB)
    for part in target.parts:
        part[:] = 7

    payload.put(0, np.ones(5_000, np.uint8))
    payload.put(5_056, np.ones(8 * _KIB - 5_056, np.uint8))

    whole = np.concatenate(target.parts)
    assert not whole[5_000:5_056].any()
    assert whole[:5_000].all()
    assert whole[5_056:].all()
