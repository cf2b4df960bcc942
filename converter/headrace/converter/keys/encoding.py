"""Digest a tree of values in a canonical form, with types and lengths; no two trees share a form.

The form is a sequence of tokens, parents before their parts. Every token starts with a letter for
its type and a length or a count, so its end is known, and a decoder could rebuild the tree;
`tests/edges` has one. There is no recursion, because Spark's plans may be thousands of nodes deep.
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
        kind: Its type, such as the name of a class.
        parts: Its parts, in order.
    """

    kind: str
    parts: tuple[object, ...] = ()


Opener = Callable[[object], object]
"""Turns a value without a canonical form into one that has it; parts of it may be opened later."""


def digest(value: object, opener: Opener) -> str:
    """Return the digest of a tree: 32 hexadecimal digits.

    Args:
        value: `None`, a bool, an integer, a float, a text, bytes, a sequence, mapping or `Node` of
            these, or a value that ``opener`` turns into one of them.
        opener: Called once for each value of any other type, in the order of the tokens.
    """
    hashed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for token in tokens(value, opener):
        hashed.update(token)
    return hashed.hexdigest()


def tokens(value: object, opener: Opener) -> Iterator[bytes]:
    """Yield the canonical form of a tree; takes what `digest` does."""
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
