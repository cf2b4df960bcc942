"""Headers of pages that somebody made up: reading them ends, and finds no checksum."""

from __future__ import annotations

import pytest

from headrace.storage.parquet.thrift import chunk_fields, has_checksum

_MAP, _BOOLEANS, _MANY = b"\x1b", b"\x11", b"\xff" * 5 + b"\x7f"  # 2 ** 42 - 1 as a varint
_HOSTILE = {
    "more booleans in a map than bytes": _MAP + _MANY + _BOOLEANS + b"\x01\x02\x00",
    "more numbers in a map than bytes": _MAP + _MANY + b"\x55" + b"\x01\x02\x00",
    "more booleans in a list than bytes": b"\x19\xf1" + _MANY + b"\x01\x00",
    "structs in structs without end": b"\x1c" * 5000,
    "lists in lists without end": b"\x19" * 5000,
}


@pytest.mark.parametrize("message", _HOSTILE.values(), ids=_HOSTILE)
def test_reading_ends(message: bytes) -> None:
    """At once, whatever counts it states: each thing counted takes a byte at least."""
    assert not has_checksum(message)
    with pytest.raises((IndexError, RecursionError)):
        list(chunk_fields(message))
