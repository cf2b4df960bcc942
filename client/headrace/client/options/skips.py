"""The samples that a training job leaves out: their ids, or the digest of a list of the server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.client.options.arguments import sample_ids_of
from headrace.client.options.stage import OrderStage
from headrace.errors import BadArgumentError
from headrace.order import Skips
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import skips_pb2

MAX_SENT_IDS = 65_536
_DIGEST = re.compile("[0-9a-f]{32}")

SkipArgument = str | Sequence[int] | None
"""Ids, the digest of a list that the server has, or None for the token's list."""


@dataclass(frozen=True, slots=True)
class SkipChoice:
    """A list of samples to leave out.

    Attributes:
        digest: The digest of the list; empty for an empty list.
        sample_ids: The ids in rising order; empty if the server has the list.
    """

    digest: str
    sample_ids: tuple[int, ...] = ()

    def to_message(self) -> pb.SkipList:
        """Write it down for the wire."""
        return pb.SkipList(digest=self.digest, sample_ids=self.sample_ids)

    def to_json(self) -> str | list[int]:
        """Return the list as JSON values."""
        return list(self.sample_ids) or self.digest


@dataclass(frozen=True, slots=True)
class Skip(OrderStage):
    """Leave samples out.

    Attributes:
        choice: The samples.
        allow_new: Whether they may be other ones than the token's, all of which are among them.
        token_choice: The token's, if they are known.
    """

    choice: SkipChoice
    allow_new: bool = False
    token_choice: SkipChoice | None = None

    def to_message(self) -> skips_pb2.Skip:
        """Write the stage down for the wire."""
        known = self.token_choice
        return skips_pb2.Skip(
            list=self.choice.to_message(),
            allow_new_list=self.allow_new,
            token_list=None if known is None else known.to_message(),
        )


def skip_choice(skips: SkipArgument) -> SkipChoice | None:
    """Return the list that an argument means; None leaves it to the token.

    Raises:
        BadArgumentError: The argument is not a digest, or has a negative id, or too many ids.
    """
    if skips is None:
        return None
    if isinstance(skips, str):
        if skips and not _DIGEST.fullmatch(skips):
            raise BadArgumentError(
                f"skips is {skips[:100]!r}; expected sample ids, or 32 lower-case hexadecimal "
                "digits of a list that the server has",
                field="skips",
            )
        return SkipChoice(skips)
    found = Skips(sample_ids_of(skips))
    if len(found) > MAX_SENT_IDS:
        raise BadArgumentError(
            f"skips has {len(found)} sample ids, but at most {MAX_SENT_IDS} can be sent; let the "
            "operator store the list, and give its digest",
            field="skips",
        )
    ids = tuple(found.sample_ids.tolist())
    return SkipChoice(found.digest if ids else "", ids)
