"""Digest a tree of values in a canonical form: typed, with lengths, so that no two share one.

The form is a sequence of tokens, a tree's parents before their parts. Every token starts with a
letter for its type and a length or a count, so one that ends is followed by nothing of its own,
and a decoder could give the tree back; `tests/edges` has one. There is no recursion: plans of
Spark may be thousands of nodes deep.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a tree.

    Attributes:
        kind: What it is, such as the name of a class.
        parts: What it is made of, in their order.
    """

    kind: str
    parts: tuple[object, ...] = ()


Opener = Callable[[object], object]
"""Turns a value that has no canonical form into one that has, of which parts may have none yet."""


def digest(value: object, opener: Opener) -> str:
    """Return 32 hexadecimal digits that name a tree.

    Args:
        value: `None`, a bool, an integer, a float, a text, bytes, a sequence or a mapping of these,
            a `Node` of these, or what ``opener`` makes one of them of.
        opener: Called once for each value of another type, in the order of the tokens.
    """
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for token in tokens(value, opener):
        hashed.update(token)
    return hashed.hexdigest()


def tokens(value: object, opener: Opener) -> Iterator[bytes]:
    """Yield the canonical form of a tree, as `digest` takes it."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        leaf = _leaf(found)
        if leaf is not None:
            yield leaf
        elif isinstance(found, Node):
            yield _sized(b"n", found.kind.encode()) + _length(len(found.parts))
            waiting.extend(reversed(found.parts))
        elif isinstance(found, (tuple, list)):
            yield b"l" + _length(len(found))
            waiting.extend(reversed(found))
        elif isinstance(found, Mapping):
            yield b"m" + _length(len(found))
            pairs = sorted(found.items())
            waiting.extend(part for pair in reversed(pairs) for part in reversed(pair))
        else:
            waiting.append(opener(found))


def _leaf(value: object) -> bytes | None:
    match value:
        case None:
            found: bytes | None = b"z"
        case bool():
            found = b"t" if value else b"f"
        case int():
            found = _sized(b"i", str(value).encode())
        case float():
            found = b"d" + struct.pack(">d", value)
        case str():
            found = _sized(b"s", value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray():
            found = _sized(b"b", bytes(value))
        case _:
            found = None
    return found


def _sized(letter: bytes, content: bytes) -> bytes:
    return letter + _length(len(content)) + content


def _length(count: int) -> bytes:
    return struct.pack(">Q", count)
