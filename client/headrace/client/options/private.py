"""Servers that a job starts itself: instead of others, or while no other answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.arguments import (
    flag,
    mapping_or_none,
    shown,
    text,
    whole_or_none,
)
from headrace.errors import BadArgumentError


@dataclass(frozen=True, slots=True)
class PrivateServer:
    """The settings of a private server, which needs the ``[server]`` extra.

    Attributes:
        cache_bytes: Size of its cache, >= 1; None for the server's default of 3 GiB.
        store: How it reaches the store, with the names of `headrace.storage.StoreOptions`, such as
            ``{"endpoint": "https://…"}``. Secrets in it are passed through a pipe; no
            representation and no message contains them. None for the environment's settings.
        tokenizers: The file of each tokenizer by its name, such as
            ``{"bpe": "tokenizer.json"}``, for packed rows of texts and for `Tokenize`. Needs the
            ``[tokenize]`` extra. None for no tokenizers.
        item_nulls: Whether to send which items of lists are null; otherwise a null item is an
            error.

    Raises:
        BadArgumentError: A value is out of range.
    """

    cache_bytes: int | None = None
    store: Mapping[str, object] | None = field(default=None, repr=False)
    tokenizers: Mapping[str, str | Path] | None = None
    item_nulls: bool = False

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        cache_bytes = whole_or_none("private.cache_bytes", self.cache_bytes, low=1)
        object.__setattr__(self, "cache_bytes", cache_bytes)
        flag("private.item_nulls", self.item_nulls)
        wanted = 'a mapping such as {"endpoint": "https://…"}, or None'
        mapping_or_none("private.store", self.store, wanted=wanted)
        wanted = 'a mapping of names to files such as {"bpe": "tokenizer.json"}, or None'
        mapping_or_none("private.tokenizers", self.tokenizers, wanted=wanted)
        for name, path in (self.tokenizers or {}).items():
            if not isinstance(name, str) or not isinstance(path, str | Path) or "=" in name:
                raise BadArgumentError(
                    f"private.tokenizers has {shown(name)}: {shown(path)}; expected {wanted}",
                    field="private",
                )

    @property
    def settings(self) -> dict[str, object]:
        """The settings of the server that differ from the defaults, with the names of its file."""
        paths = sorted((self.tokenizers or {}).items())
        tokenizers = [f"{name}={Path(path).absolute()}" for name, path in paths]
        stated = {
            "cache_bytes": self.cache_bytes,
            "tokenizers": tokenizers,
            "item_nulls": self.item_nulls,
        }
        return {name: value for name, value in stated.items() if value}


@dataclass(frozen=True, slots=True)
class Fallback:
    """Read the same batches from storage, through a private server, while no server answers.

    It steps in after ``Deadlines.fallback_s`` without an answer, until a server answers again.

    Attributes:
        url: URL of the dataset that the servers serve; for a mixture, the URL of each dataset
            by its name.

    Raises:
        BadArgumentError: The URL has the wrong type.
    """

    url: str | Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse arguments that are not URLs."""
        wanted = "a URL such as 's3://bucket/path', or a mapping of names to URLs"
        if self.url is None:
            raise BadArgumentError(f"fallback.url is None; expected {wanted}", field="fallback")
        if isinstance(self.url, Mapping):
            mapping_or_none("fallback.url", self.url, wanted=wanted)
        else:
            text("fallback.url", self.url, wanted=wanted)
