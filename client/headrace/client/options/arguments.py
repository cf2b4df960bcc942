"""Check the arguments of datasets before anything is sent.

Each function returns the argument in the form that the rest of the client uses, or raises
`BadArgumentError`, which names the argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from headrace.arguments import instance, one_of, text, texts, whole, whole_or_none
from headrace.client.options.sharding import Sharding
from headrace.errors import BadArgumentError
from headrace.order import EndMode

_MOST_COUNT = 1 << 62
_EXPRESSION = "an expression such as \"label < 10 and lang = 'en'\", or None"


def end_mode(name: str) -> EndMode:
    """Return how an incomplete last batch is treated.

    Raises:
        BadArgumentError: There is no such mode.
    """
    one_of("end", name, [mode.value for mode in EndMode])
    return EndMode(name)


def batch_size_of(batch_size: int | None, sharding: Sharding) -> int | None:
    """Return the samples per batch of this rank; None if they are not known.

    Raises:
        BadArgumentError: The size is out of range, or the sharding has the global batch's too.
    """
    own = whole_or_none("batch_size", batch_size, low=1, high=_MOST_COUNT)
    if own is not None and sharding.global_batch_size is not None:
        raise BadArgumentError(
            f"batch_size={own} and Sharding(global_batch_size={sharding.global_batch_size}): give "
            "only one of them",
            field="batch_size",
        )
    return own


def epochs_of(epochs: int | str | None) -> tuple[bool, int | None]:
    """Return whether each loop reads the same epoch, and the number of epochs; None for no end."""
    if isinstance(epochs, str) and epochs == "same":
        return True, None
    return False, epoch_limit(cast("int | None", epochs))


def epoch_limit(epochs: int | None) -> int | None:
    """Return the number of epochs; None for no end."""
    return whole_or_none("epochs", epochs, low=0, high=_MOST_COUNT)


def column_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the names of columns, each once.

    Raises:
        BadArgumentError: The argument is a single string, holds other types, or repeats a name.
    """
    names = texts("columns", columns, wanted="a list of column names")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadArgumentError(
            f"columns names {twice!r} twice; expected each column once", field="columns"
        )
    return names


def where_of(where: str | None, *, field: str = "where") -> str:
    """Return the expression that an argument means; empty for None.

    Raises:
        BadArgumentError: The argument is not a string, or is empty.
    """
    return "" if where is None else text(field, where, wanted=_EXPRESSION)


def token_bytes(token: bytes) -> bytes:
    """Return a token."""
    return instance("token", token, bytes, wanted="the bytes of a Batch.token, or None")


def sample_ids_of(skips: object) -> list[int]:
    """Return the ids of samples to leave out, as they were given.

    Raises:
        BadArgumentError: An element is not an id.
    """
    if isinstance(skips, Mapping | bytes) or not isinstance(skips, Iterable):
        raise BadArgumentError(
            f"skips is of type {type(skips).__name__}; expected a list of sample ids, or the "
            "digest of a list that the server has",
            field="skips",
        )
    tolist = getattr(skips, "tolist", None)
    # An array's own method is faster, and returns plain numbers.
    ids = tolist() if callable(tolist) else list(skips)
    plain = [each for each in ids if type(each) is int and 0 <= each < _MOST_COUNT]
    if len(plain) == len(ids):
        return plain
    return [whole(f"skips[{at}]", each, low=0, high=_MOST_COUNT) for at, each in enumerate(ids)]
