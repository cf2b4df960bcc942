"""What a token says of images: what is done to them, and what decodes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

IMAGES: Final = "headrace.images"
"""Stands among a token's transforms, instead of a name; no transform may be called so."""

AUGMENTATION_VERSION: Final = 1
"""Of docs/augmentation.md: of the draws and of the arithmetic."""

_DECODER_BYTES: Final = 4


def images_title(steps: Iterable[tuple[int, bytes]], decoder: str = "") -> str:
    """Return what a token says of images; empty without any.

    Args:
        steps: The steps that go through image transforms, each its place in the request and its
            encoded message; of those that mix images what `mixing_step` returns.
        decoder: The decoder's version; empty where none has decoded anything yet.
    """
    hashed = hashlib.blake2b(digest_size=16, person=b"headrace-images")
    hashed.update(bytes([AUGMENTATION_VERSION]))
    count = 0
    for place, content in steps:
        hashed.update(place.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content)
        count += 1
    if not count:
        return ""
    title = f"{IMAGES}@{hashed.hexdigest()}"
    if not decoder:
        return title
    own = hashlib.blake2b(decoder.encode(), digest_size=_DECODER_BYTES, person=b"headrace-decoder")
    return f"{title}-{own.hexdigest()}"


def mixing_step(encoded: bytes) -> bytes:
    """Return what stands for a step that mixes images: no encoded message begins with a zero."""
    return bytes(1) + encoded


def split_images(transforms: str) -> tuple[str, str, str]:
    """Return the parts of what a token says of transforms.

    Returns:
        The transforms but images; the digest of what is done to images; that of what decodes them.
        Each is empty if there is none.
    """
    names = transforms.split(",") if transforms else []
    others = [name for name in names if not name.startswith(f"{IMAGES}@")]
    (images,) = [name for name in names if name.startswith(f"{IMAGES}@")][:1] or [""]
    digest, _, decoder = images.removeprefix(f"{IMAGES}@").partition("-")
    return ",".join(others), digest, decoder
