"""Turn texts into tokens with a tokenizer that a file describes.

The same file, library and text give the same tokens: truncation, padding and special tokens are
disabled, and tokenizers that use random numbers are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    import tokenizers

MAX_TEXT_BYTES: Final = 4 << 20
"""The most bytes of one text: it takes a second or two, and cannot be interrupted."""

TOKEN_BYTES: Final = 128
"""Memory that the library uses per token while it works on a text (measured); a byte of text is
rarely more than one token."""

CHUNK_BYTES: Final = 32 << 10
"""Bytes of texts that are passed to the library together: about 10 ms of work, with little
overhead.
"""

_MAX_FILE_BYTES: Final = 1 << 28
_DIGEST_BYTES: Final = 16
_REASON_LIMIT: Final = 200
# The settings of a model that make its tokens random.
_RANDOM: Final = ("dropout", "alpha", "nbest_size")


class TextRefusedError(Exception):
    """A text cannot be tokenized.

    Attributes:
        row: The index of the text.
        reason: Why it cannot be tokenized.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"text {row}: {reason}")
        self.row = row
        self.reason = reason


class Tokenizer:
    """A tokenizer; safe to call from several threads, which run in parallel.

    Args:
        library: The library's tokenizer, as prepared by `load_tokenizer`.
        digest: The digest of its file.

    Attributes:
        digest: BLAKE2b-128 of its file, 32 hexadecimal digits.
    """

    def __init__(self, library: tokenizers.Tokenizer, *, digest: str) -> None:
        self._library = library
        self.digest: Final = digest

    def encode(
        self, texts: Sequence[bytes | memoryview], *, special_tokens: bool = False
    ) -> list[NDArray[np.int32]]:
        """Return the tokens of each text.

        Args:
            texts: The texts in UTF-8, about `CHUNK_BYTES` in total, since the work on them cannot
                be interrupted.
            special_tokens: Whether to add what the tokenizer's post-processor adds.

        Raises:
            TextRefusedError: A text is too long, not UTF-8, or not accepted by the tokenizer.
        """
        decoded = [_decoded(row, text) for row, text in enumerate(texts)]
        try:
            found = self._encode(decoded, special_tokens=special_tokens)
        except _LibraryError:
            # The library does not say which text it was.
            found = []
            for row, text in enumerate(decoded):
                try:
                    found += self._encode([text], special_tokens=special_tokens)
                except _LibraryError as error:
                    raise TextRefusedError(row, str(error)[:_REASON_LIMIT]) from error
        return found

    def lengths(self, texts: Sequence[bytes | memoryview]) -> NDArray[np.int64]:
        """Return the number of tokens of each text, without special tokens.

        Raises:
            TextRefusedError: As for `encode`.
        """
        lengths = np.empty(len(texts), np.int64)
        for start, end in text_chunks([len(text) for text in texts]):
            try:
                found = self.encode(texts[start:end])
            except TextRefusedError as error:
                raise TextRefusedError(start + error.row, error.reason) from error
            lengths[start:end] = [each.size for each in found]
        return lengths

    def decode(self, tokens: Sequence[int]) -> str | None:
        """Return the text of tokens, including special ones; None if one of them is unknown.

        The text is for people: another text may have the same tokens.
        """
        if any(one < 0 or self._library.id_to_token(one) is None for one in set(tokens)):
            return None
        return str(self._library.decode(list(tokens), skip_special_tokens=False))

    def _encode(self, texts: list[str], *, special_tokens: bool) -> list[NDArray[np.int32]]:
        try:
            found = self._library.encode_batch_fast(texts, add_special_tokens=special_tokens)
        except (KeyboardInterrupt, SystemExit):
            raise
        # The library's errors have no class of their own, and its panics are not exceptions.
        except BaseException as error:
            raise _LibraryError(f"{type(error).__name__}: {error}") from error
        return [np.array(each.ids, np.int32) for each in found]


def text_chunks(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges ``[start, end)`` of neighbouring texts to pass to the library together.

    Args:
        sizes: The size of each text in bytes.
    """
    start = total = 0
    for row, size in enumerate(sizes):
        if row > start and total + size > CHUNK_BYTES:
            yield start, row
            start, total = row, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer from a file such as the ``tokenizer.json`` of a Hugging Face model.

    Raises:
        ConfigurationError: The file is not a tokenizer, the tokenizer is random, or the library is
            missing.
    """
    try:
        import tokenizers  # noqa: PLC0415 - of the [tokenize] extra
    except ImportError as error:
        raise ConfigurationError(
            "tokenizing needs the package tokenizers, which is not installed here: pip install "
            "'headrace[tokenize]'"
        ) from error
    # Its own threads would add to those that call it. It reads this in each call.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    content = _content(Path(path))
    _refuse_random(content, path)
    try:
        library = tokenizers.Tokenizer.from_buffer(content)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ConfigurationError(
            f"{path} is not a tokenizer that tokenizers {tokenizers.__version__} can load: "
            f"{error!s:.200}; give a model's tokenizer.json"
        ) from error
    library.no_truncation()
    library.no_padding()
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
    return Tokenizer(library, digest=digest)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(
            f"the tokenizer {path} cannot be read: {error.strerror}; give a model's tokenizer.json"
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigurationError(
            f"the tokenizer {path} has more than {_MAX_FILE_BYTES} bytes; give a model's "
            "tokenizer.json"
        )
    return content


def _refuse_random(content: bytes, path: str | os.PathLike[str]) -> None:
    try:
        found = json.loads(content)
        model = found["model"]
        drawn = [name for name in _RANDOM if model.get(name)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} is not a tokenizer: {type(error).__name__}: {error!s:.200}; give a model's "
            "tokenizer.json"
        ) from error
    if drawn:
        raise ConfigurationError(
            f"the tokenizer {path} has {drawn[0]} {model[drawn[0]]!s:.20}, so it makes different "
            "tokens from the same text each time; set it to null in the file"
        )


def _decoded(row: int, text: bytes | memoryview) -> str:
    if len(text) > MAX_TEXT_BYTES:
        raise TextRefusedError(
            row, f"it has {len(text)} bytes of text, expected at most {MAX_TEXT_BYTES}; split it"
        )
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise TextRefusedError(row, f"it is not UTF-8: {error.reason}") from error


class _LibraryError(Exception):
    """The library refused a text."""
