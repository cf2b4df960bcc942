"""Stages of texts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.arguments import flag, instance, shown, text
from headrace.client.options.stage import COLUMN, Stage
from headrace.errors import BadArgumentError
from headrace.order import TOKENIZER, tokenizer_version
from headrace.v1 import texts_pb2 as pb

_DIGEST = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Tokenize(Stage):
    """Tokenize a column of text: lists of int32, the same for the same tokenizer and text.

    Resume tokens contain the tokenizer's digest: a run resumes only with the same tokenizer.

    Attributes:
        column: The column, which keeps its name.
        tokenizer: The name that the server's operator gave to a tokenizer with
            ``headrace serve --tokenizer NAME=FILE``.
        special_tokens: Whether to add the special tokens that the tokenizer adds to each text,
            such as those of BERT.
        digest: BLAKE2b-128 of the tokenizer's file in hexadecimal; empty for the server's.
    """

    column: str
    tokenizer: str
    special_tokens: bool = False
    digest: str = ""

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Tokenize.column", self.column, wanted=COLUMN)
        text("Tokenize.tokenizer", self.tokenizer, wanted="a name that the operator gave")
        flag("Tokenize.special_tokens", self.special_tokens)
        instance("Tokenize.digest", self.digest, str, wanted="a str")
        if self.digest and not _DIGEST.fullmatch(self.digest):
            raise BadArgumentError(
                f"Tokenize.digest is {shown(self.digest)}; expected 32 hexadecimal digits, as "
                "`b2sum --length 128` prints them",
                field="stages",
            )

    def to_message(self) -> pb.Tokenize:
        """Write the stage down for the wire."""
        return pb.Tokenize(
            column=self.column,
            tokenizer=self.tokenizer,
            digest=self.digest,
            special_tokens=self.special_tokens,
        )

    def title(self) -> str:
        """Return the digest of the tokenizer and of the options."""
        if not self.digest:
            raise BadArgumentError(
                f"the digest of the tokenizer {self.tokenizer!r} is chosen by the server, so there "
                "is no state before the first batch; give its digest, or take the state later",
                field="stages",
            )
        version = tokenizer_version(self.column, self.digest, special_tokens=self.special_tokens)
        return f"{TOKENIZER}@{version}"
