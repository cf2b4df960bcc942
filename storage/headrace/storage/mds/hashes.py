"""The hashes that an index may store for its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping

import xxhash

# Fastest first: one match is enough, and only the first hash that an index has is checked.
_DIGESTS: Mapping[str, Callable[[bytes], str]] = {
    "xxh3_64": xxhash.xxh3_64_hexdigest,
    "xxh3_128": xxhash.xxh3_128_hexdigest,
    "xxh128": xxhash.xxh128_hexdigest,
    "xxh64": xxhash.xxh64_hexdigest,
    "xxh32": xxhash.xxh32_hexdigest,
    "sha1": lambda content: hashlib.sha1(content, usedforsecurity=False).hexdigest(),
    "blake2b": lambda content: hashlib.blake2b(content).hexdigest(),
    "sha256": lambda content: hashlib.sha256(content).hexdigest(),
    "sha224": lambda content: hashlib.sha224(content).hexdigest(),
    "md5": lambda content: hashlib.md5(content, usedforsecurity=False).hexdigest(),
    "blake2s": lambda content: hashlib.blake2s(content).hexdigest(),
    "sha512": lambda content: hashlib.sha512(content).hexdigest(),
    "sha384": lambda content: hashlib.sha384(content).hexdigest(),
    "sha3_224": lambda content: hashlib.sha3_224(content).hexdigest(),
    "sha3_256": lambda content: hashlib.sha3_256(content).hexdigest(),
    "sha3_384": lambda content: hashlib.sha3_384(content).hexdigest(),
    "sha3_512": lambda content: hashlib.sha3_512(content).hexdigest(),
}

HASHES = frozenset(_DIGESTS)
"""Names of all hashes."""


def digest_of(algorithm: str, content: bytes) -> str:
    """Return the lower-case hexadecimal digest of ``content``.

    Args:
        algorithm: One of `HASHES`.
        content: A whole file.
    """
    return _DIGESTS[algorithm](content)


def fastest(algorithms: Collection[str]) -> str:
    """Return the algorithm to check among ``algorithms``, of which there is at least one."""
    if len(algorithms) == 1:
        return next(iter(algorithms))
    return next(name for name in _DIGESTS if name in algorithms)
