"""Where the buffers of a payload lie, and what their elements are."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace.payload import (
    ALIGNMENT,
    BFLOAT16,
    ELEMENT_DTYPES,
    PayloadLayout,
    aligned,
    layout_of,
    place_buffers,
)
from headrace.v1 import shard_service_pb2 as pb


@dataclass(frozen=True)
class _Column:
    is_tensor: bool
    item_bytes: int = 0
    nullable: bool = False


def test_a_payload_is_laid_out_as_the_protocol_says() -> None:
    """Validity, offsets, values; each at the next multiple of 64 bytes, and nothing at the end."""
    columns = [
        _Column(is_tensor=True, item_bytes=24, nullable=True),
        _Column(is_tensor=False),
        _Column(is_tensor=True, item_bytes=1),
    ]

    found = layout_of(columns, 3, [70])

    assert PayloadLayout((3, 72, 32, 70, 3), (0, 64, 192, 256, 384), 387) == found


def test_every_element_of_the_schema_has_a_type_of_its_name() -> None:
    """A type that the protocol gains cannot be forgotten here."""
    named = {
        number: name.removeprefix("ELEMENT_TYPE_").lower()
        for name, number in pb.ElementType.items()
        if number
    }

    names = {number: dtype.name for number, dtype in ELEMENT_DTYPES.items()}
    # NumPy has none.
    assert names.pop(pb.ELEMENT_TYPE_BFLOAT16) == BFLOAT16.name == "void16"
    assert named == {**names, pb.ELEMENT_TYPE_BFLOAT16: "bfloat16"}
    assert {"<", "|"} >= {dtype.str[0] for dtype in ELEMENT_DTYPES.values()}


@given(st.lists(st.integers(0, 1 << 40)))
def test_buffers_stand_apart_and_as_near_as_alignment_lets_them(lengths: list[int]) -> None:
    """Each begins at a multiple of 64, less than 64 bytes after the one before it."""
    starts, size = place_buffers(lengths)

    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    assert [aligned(end) for end in [0, *ends][:-1]] == starts[: len(ends)]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert all(0 <= b - e < ALIGNMENT for b, e in zip(starts[1:], ends[:-1], strict=True))
    assert ([0, *ends][-1]) == size
