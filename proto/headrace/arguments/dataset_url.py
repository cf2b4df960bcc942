"""The texts in which people name a dataset whose index is stored elsewhere than its files."""

from __future__ import annotations

from collections.abc import Iterable

_FROM = " from "


def split_source(url: str) -> tuple[str, str | None]:
    """Split ``INDEX from SOURCE`` into two URLs; None for the source of any other text.

    A local path that contains `` from `` must be written as a URL, ``file:///photos%20from%20me``.
    """
    index, found, source = url.partition(_FROM)
    return (index.strip(), source.strip()) if found else (url, None)


def joined_sources(words: Iterable[str]) -> list[str]:
    """Return words in which ``INDEX``, ``from`` and ``SOURCE`` are one, as people write them."""
    joined: list[str] = []
    is_source = False
    for word in words:
        is_from = word == _FROM.strip() and bool(joined) and not is_source
        if is_from or is_source:
            joined[-1] += f" {word}"
        else:
            joined.append(word)
        is_source = is_from
    return joined


def with_source(index: str, source: str | None) -> str:
    """Return the text that `split_source` splits."""
    return index if source is None else f"{index}{_FROM}{source}"
