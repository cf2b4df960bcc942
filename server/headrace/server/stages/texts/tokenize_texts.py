"""The stage that tokenizes texts, on all processors.

The tokens of a text depend only on the text and the tokenizer, not on which texts are passed to the
library together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StageFailedError, TokenSpecChangedError
from headrace.server.batch.batch_values import Batch, Values
from headrace.server.batch.row_pool import Waits
from headrace.server.batch.stage import Columns, Context, Running, Stage, wanted_column
from headrace.server.layout.packed_columns import token_column
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.texts.tokenizers import Tokenizers
from headrace.storage import Tokenizer
from headrace.storage.tokenizer.tokenizer import TOKEN_BYTES, TextRefusedError, text_chunks
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import texts_pb2 as texts_pb

INT32 = np.dtype("<i4")
# Bytes per text: its view, and the array object of its tokens.
_TEXT_BYTES = 512


class Tokenize(Stage):
    """Turn a column of texts into a column of token lists.

    Args:
        message: The stage as requested.
        tokenizers: The registered tokenizers.

    Raises:
        BadArgumentError: There is no such tokenizer.
        TokenSpecChangedError: Its digest differs from the requested one.
    """

    def __init__(self, message: texts_pb.Tokenize, tokenizers: Tokenizers) -> None:
        self._name = message.column
        self._tokenizer = wanted_tokenizer(message, tokenizers)
        self._special_tokens = message.special_tokens

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        column = wanted_column(before, self._name, "tokenize", (pb.COLUMN_KIND_STRING,))
        return {**before, self._name: token_column(column)}

    def run(self, batch: Batch, context: Context) -> Running[Batch]:
        found = batch.columns[self._name]
        texts = texts_of(found)
        tokens = yield from tokens_of(
            self._tokenizer,
            texts,
            context,
            special_tokens=self._special_tokens,
            fail=self._failure,
        )
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([each.size for each in tokens], out=offsets[1:])
        values = np.concatenate([*tokens, np.empty(0, INT32)])
        made = Values(token_column(found.column), values, offsets, found.valid)
        return replace(batch, columns={**batch.columns, self._name: made})

    def _failure(self, row: int, reason: str) -> StageFailedError:
        return StageFailedError(
            f"tokenize: row {row} of column {self._name!r} cannot be tokenized: {reason}",
            column=self._name,
            row=row,
        )


def wanted_tokenizer(message: texts_pb.Tokenize, tokenizers: Tokenizers) -> Tokenizer:
    """Return the tokenizer of a stage.

    Raises:
        BadArgumentError: There is no tokenizer of that name.
        TokenSpecChangedError: Its digest differs from the requested one.
    """
    found = tokenizers.named(message.tokenizer)
    if message.digest not in {"", found.digest}:
        raise TokenSpecChangedError(
            f"the tokenizer {message.tokenizer} has the digest {found.digest} here, but "
            f"{message.digest[:100]!r} is requested; ask a server that has it",
            field="stages",
        )
    return found


def texts_of(found: Values) -> list[memoryview]:
    """Return the bytes of each text, empty for null."""
    assert found.offsets is not None
    content = np.ascontiguousarray(found.values).view(np.uint8).data.toreadonly()
    edges = found.offsets.tolist()
    return [content[start:end] for start, end in pairwise(edges)]


class Fail(Protocol):
    """Returns the error for a text that cannot be tokenized."""

    def __call__(self, row: int, reason: str) -> StageFailedError: ...


def tokens_of(
    tokenizer: Tokenizer,
    texts: Sequence[memoryview],
    context: Context,
    *,
    fail: Fail,
    special_tokens: bool = False,
) -> Waits[list[NDArray[np.int32]]]:
    """Return the tokens of each text.

    Args:
        tokenizer: The tokenizer to use.
        texts: The texts, in UTF-8.
        context: Its threads call the tokenizer, each with a few texts at a time.
        fail: Returns the error for a text that cannot be tokenized.
        special_tokens: Whether the tokenizer adds its special tokens.

    Raises:
        StageFailedError: ``fail`` returned it, or the texts take too long.
    """
    chunks = list(text_chunks([len(text) for text in texts]))
    sizes = [sum(len(text) for text in texts[start:end]) for start, end in chunks]
    # A token rarely has less than a byte of text; tokens are first in one array per text, then in
    # one array for all.
    made = 2 * INT32.itemsize * sum(sizes) + _TEXT_BYTES * len(texts)
    workers = context.workers
    context.claim(made + workers.pool.threads * TOKEN_BYTES * max(sizes, default=0))
    tokens: list[NDArray[np.int32]] = [_NOTHING] * len(texts)

    def encode(chunk: int) -> None:
        start, end = chunks[chunk]
        try:
            tokens[start:end] = tokenizer.encode(texts[start:end], special_tokens=special_tokens)
        except TextRefusedError as error:
            raise fail(start + error.row, error.reason) from error

    yield from workers.work(len(chunks), encode)
    return tokens


_NOTHING = np.empty(0, INT32)
