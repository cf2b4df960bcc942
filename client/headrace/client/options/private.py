"""Servers that a job starts for itself: instead of others, or while none of them answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.arguments import instance_or_none, mapping_or_none, text, whole_or_none
from headrace.errors import BadArgumentError


@dataclass(frozen=True, slots=True)
class PrivateServer:
    """What a private server is started with; it needs the ``[server]`` extra.

    Attributes:
        cache_bytes: Size of its cache, >= 1; None for the server's default of 2 GiB.
        store: How it reaches the store, by the names of `headrace.storage.StoreOptions`, such as
            ``{"endpoint": "https://…"}``. Secrets in it go through a pipe, and stand in no
            representation and no message. None for the environment's way.

    Raises:
        BadArgumentError: A value is out of range.
    """

    cache_bytes: int | None = None
    store: Mapping[str, object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse what nobody can mean."""
        cache_bytes = whole_or_none("private.cache_bytes", self.cache_bytes, low=1)
        object.__setattr__(self, "cache_bytes", cache_bytes)
        wanted = 'a mapping such as {"endpoint": "https://…"}, or None'
        mapping_or_none("private.store", self.store, wanted=wanted)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Read the same batches from storage, through a private server, while no server answers.

    It steps in after ``Deadlines.fallback_s`` without an answer, until a server answers again.

    Attributes:
        url: Where the dataset lies that the servers serve; of a mixture the place of each dataset
            by its name.

    Raises:
        BadArgumentError: It is something else.
    """

    url: str | Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse what is no place."""
        wanted = "a URL such as 's3://bucket/path', or a mapping of names to URLs"
        if self.url is None:
            raise BadArgumentError(f"fallback.url is None; expected {wanted}", field="fallback")
        if isinstance(self.url, Mapping):
            mapping_or_none("fallback.url", self.url, wanted=wanted)
        else:
            text("fallback.url", self.url, wanted=wanted)


def private_of(private: PrivateServer | None) -> PrivateServer:
    """Return what a private server is started with; None for the defaults."""
    wanted = "PrivateServer(cache_bytes=…, store={…}), or None"
    return instance_or_none("private", private, PrivateServer, wanted=wanted) or PrivateServer()


def fallback_of(fallback: Fallback | None) -> Fallback | None:
    """Return the fallback that an argument means."""
    wanted = "Fallback('s3://bucket/path'), or None"
    return instance_or_none("fallback", fallback, Fallback, wanted=wanted)
