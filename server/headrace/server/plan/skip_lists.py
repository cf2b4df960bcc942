"""Lists of samples to skip: those stored by the operator, and those of requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    SkipsNotFoundError,
    TokenSpecChangedError,
)
from headrace.order import Skips, Token, check_skips
from headrace.v1 import shard_service_pb2 as pb

# The number of ids of maximum length that fit into a request of 1 MiB.
MAX_SENT_IDS = 65_536
# A stored list stays in memory, with 8 bytes per id.
_MAX_FILE_BYTES = 1 << 30

LIST_LIMITS: Final = {"SkipList.sample_ids": MAX_SENT_IDS}
"""The greatest length of a list in a message."""

Lists = Mapping[str, Skips]
"""The stored lists of one dataset, by digest."""


def read_skip_lists(files: Iterable[str]) -> dict[str, Skips]:
    """Read stored lists, with one sample id per line; ``#`` starts a comment.

    Returns:
        The lists by digest.

    Raises:
        ConfigurationError: A file cannot be read, or has other contents.
    """
    lists = (_read(Path(file)) for file in files)
    return {skips.digest: skips for skips in lists}


def list_message(skips: Skips) -> pb.SkipList:
    """Return the message for a list, without its ids."""
    return pb.SkipList(digest=skips.digest, sample_count=len(skips))


def digest_of(skips: Skips | None) -> str:
    """Return the entry for a list in a token."""
    return "" if skips is None else skips.digest


def found_list(message: pb.SkipList, lists: Lists, *, field: str) -> Skips | None:
    """Return the list of a message; None for an empty one.

    Raises:
        BadArgumentError: It is too long, or does not match its digest.
        SkipsNotFoundError: It is given only by its digest, and the server does not have it.
    """
    count = len(message.sample_ids)
    if not count:
        return _named(message.digest, lists, field=field)
    if count > MAX_SENT_IDS:
        raise BadArgumentError(
            f"{field} has {count} sample ids; it must have at most {MAX_SENT_IDS}. Ask the "
            "operator to store the list, and name it by its digest",
            field=f"{field}.sample_ids",
        )
    skips = Skips(np.array(message.sample_ids, np.int64))
    if message.digest not in {"", skips.digest}:
        raise BadArgumentError(
            f"{field} has the digest {message.digest[:100]!r}, but its ids have {skips.digest}",
            field=f"{field}.digest",
        )
    return skips


def check_adoption(
    wanted: Skips | None, found: Skips | None, token: Token, *, allow_new_skips: bool
) -> None:
    """Refuse a list that differs from the token's, unless it contains that and may be adopted.

    Raises:
        TokenSpecChangedError: It may not be adopted.
    """
    if digest_of(found) != token.stage("skips"):
        raise TokenSpecChangedError(
            f"the token skips the samples of {_title(token.stage('skips'))}, but those of "
            f"{_title(digest_of(wanted))} are requested; give the token's list as token_skips with "
            "allow_new_skips, or request the token's list",
            field="skips",
        )
    none = Skips([])
    check_skips(wanted or none, found or none, allow_new_skips=allow_new_skips)


def _title(digest: str) -> str:
    return f"the list {digest}" if digest else "no list"


def _named(digest: str, lists: Lists, *, field: str) -> Skips | None:
    if not digest:
        return None
    if digest not in lists:
        raise SkipsNotFoundError(
            f"{field}: the server has no list of samples with the digest {digest[:100]}; send its "
            f"ids if there are at most {MAX_SENT_IDS}, or ask the operator to store it",
            field=field,
            digest=digest[:100],
        )
    return lists[digest]


def _read(path: Path) -> Skips:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigurationError(f"the skips {path} have more than {_MAX_FILE_BYTES} bytes")
        lines = path.read_text(encoding="ascii").splitlines()
        ids = [int(text) for line in lines if (text := line.partition("#")[0].strip())]
        return Skips(np.array(ids, np.int64))
    except (OSError, ValueError, OverflowError, BadArgumentError) as error:
        raise ConfigurationError(
            f"the skips {path} cannot be read ({error}); expected a file with one sample id "
            "per line"
        ) from error
