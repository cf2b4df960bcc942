"""What a resume token says about tokenized texts: by which tokenizer, and how."""

from __future__ import annotations

import hashlib
from typing import Final

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
