"""What a token says about transforms: of images, what decodes them, and of tokenized texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

IMAGES: Final = "headrace.images"
"""Stands for images among a token's transforms; no transform may have this name."""

TRANSFORMS_LIMIT_BYTES: Final = 120
"""The longest text of transforms in a token, which leaves room for all other stages."""

AUGMENTATION_VERSION: Final = 1
"""Version of docs/augmentation.md, for its draws and its arithmetic."""

_DECODER_BYTES: Final = 4


def images_title(stages: Iterable[tuple[int, bytes]], decoder: str = "") -> str:
    """Return what a token says about images; empty without image stages.

    Args:
        stages: Those that transform or mix images: the place of each in the request, and the
            bytes that stand for it in docs/order.md.
        decoder: The decoder's version; empty if nothing has been decoded yet.
    """
    hashed = hashlib.blake2b(digest_size=16, person=b"headrace-images")
    hashed.update(bytes([AUGMENTATION_VERSION]))
    count = 0
    for place, content in stages:
        hashed.update(place.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content)
        count += 1
    if not count:
        return ""
    title = f"{IMAGES}@{hashed.hexdigest()}"
    if not decoder:
        return title
    own = hashlib.blake2b(decoder.encode(), digest_size=_DECODER_BYTES, person=b"headrace-decoder")
    return f"{title}-{own.hexdigest()}"


def split_images(transforms: str) -> tuple[str, str, str]:
    """Split what a token says about transforms.

    Returns:
        The transforms without images; the digest of the stages of images; that of the decoder.
        Each is empty if there is none.
    """
    names = transforms.split(",") if transforms else []
    others = [name for name in names if not name.startswith(f"{IMAGES}@")]
    (images,) = [name for name in names if name.startswith(f"{IMAGES}@")][:1] or [""]
    digest, _, decoder = images.removeprefix(f"{IMAGES}@").partition("-")
    return ",".join(others), digest, decoder


TOKENIZER: Final = "headrace.tokenizer"
"""Stands for tokenizers among a token's transforms; no transform may have this name."""

_SHOWN_DIGITS: Final = 16
_OPTIONS_BYTES: Final = 4


def tokenizer_version(column: str, digest: str, *, special_tokens: bool) -> str:
    """Return what a token says about a tokenized column, after `TOKENIZER` and ``@``.

    Args:
        column: The column.
        digest: The digest of the tokenizer's file, 32 hexadecimal digits.
        special_tokens: Whether the tokenizer adds its special tokens.
    """
    content = f"{int(special_tokens)} {column}".encode()
    options = hashlib.blake2b(content, digest_size=_OPTIONS_BYTES, person=b"headrace-tokens")
    return f"{digest[:_SHOWN_DIGITS]}-{options.hexdigest()}"
