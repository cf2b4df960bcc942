"""Hide paths in errors for clients on other machines: files are named relative to their dataset.

Only the operator may know where a dataset lies, and what else is on the server's disks. Clients of
a unix socket are on the same machine and get full paths, like the log.

Messages are changed in this order:

1. Paths that start with the URL of a dataset, in any spelling, become relative to it.
2. The id of the store's access key is hidden, and what a source of credentials said when it failed,
   such as a helper program on standard error.
3. All other URLs and absolute paths are hidden: the store's endpoint, files beside datasets, paths
   in messages of a transform.

Errors that repeat the caller's own words contain no places and are not changed. Otherwise a caller
could find out which paths exist by naming them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import (
    BadArgumentError,
    CallerError,
    ConfigurationError,
    HeadraceError,
    NotADatasetError,
    NoTransportError,
    StageFailedError,
    UnsupportedColumnError,
)

_THE_URL = "the dataset's URL"
_HIDDEN = "(hidden)"

# Errors of the caller that are found in files nevertheless.
_FOUND_IN_FILES = (
    ConfigurationError,
    NotADatasetError,
    NoTransportError,
    StageFailedError,
    UnsupportedColumnError,
)
# `headrace.storage.store` describes refused credentials like this.
_ACCESS_KEY = re.compile(r"\baccess key [^\s;,()]+")
# And credentials that it could not get like this; the rest is in others' words.
_NO_KEYS = re.compile(
    r"(\bno credentials for .*?|\bnewer credentials cannot be read): .*", re.DOTALL
)
# URLs to remember (arbitrary), even of datasets that are no longer served, because their streams
# may still fail. Names below forgotten URLs are hidden like all other paths.
MOST_PLACES = 16_384
_LOCAL_SCHEMES = frozenset({"file", "local"})
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*[^\s'\"<>.,;:)]")
_QUOTED_PATH = re.compile(r"(?P<quote>['\"])/[^'\"/]+/[^'\"]*(?P=quote)")
_PATH = re.compile(r"(?<![\w.:/)\]-])/[^\s/'\"<>:;,]+(?:/[^\s/'\"<>:;,]*)+")


class DatasetPlaces:
    """The URLs of datasets; thread-safe.

    Datasets that are no longer served stay known, because their streams may still fail. If there
    are more than ``most`` URLs, the one added least recently is forgotten.

    Args:
        most: The most URLs to remember.
    """

    def __init__(self, most: int = MOST_PLACES) -> None:
        self._most = most
        self._urls: dict[str, tuple[str, ...]] = {}
        # Replaced as a whole and never changed, so that readers need no lock. Longest first.
        self._roots: tuple[str, ...] = ()

    def add(self, url: str) -> None:
        """Remember the URL of a dataset."""
        self._urls.pop(url, None)
        self._urls[url] = tuple(_spellings(url))
        while len(self._urls) > self._most:
            del self._urls[next(iter(self._urls))]
        found = {root for spellings in self._urls.values() for root in spellings}
        self._roots = tuple(sorted(found, key=lambda root: (-len(root), root)))

    def without(self, error: HeadraceError) -> HeadraceError:
        """Return an error that names files relative to their dataset; the same one if it does."""
        if not _may_have_places(error):
            return error
        message = self._relative(error.message)
        metadata = {key: self._relative(value) for key, value in error.metadata.items()}
        if (message, metadata) == (error.message, error.metadata):
            return error
        told = copy.copy(error)
        told.message, told.metadata = message, metadata
        return told

    def _relative(self, text: str) -> str:
        text = _ACCESS_KEY.sub("an access key", text)
        text = _NO_KEYS.sub(r"\1; the server's log says why", text)
        if "/" not in text:
            return text
        for root in self._roots:
            if root in text:
                text = _pattern(root).sub(_name_below, text)
        text = _URL.sub(_HIDDEN, text)
        text = _QUOTED_PATH.sub(_HIDDEN, text)
        return _PATH.sub(_HIDDEN, text)


def _may_have_places(error: HeadraceError) -> bool:
    if isinstance(error, BadArgumentError):
        # No request has a field of this name.
        return error.metadata.get("field") == "url"
    return isinstance(error, _FOUND_IN_FILES) or not isinstance(error, CallerError)


def _spellings(url: str) -> Iterator[str]:
    """Yield the ways in which messages may write the URL of a dataset; each contains a slash."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    if separator and scheme not in _LOCAL_SCHEMES:
        rest = rest.strip("/")
        yield from (each for each in (f"{scheme}://{rest}", f"/{rest}", rest) if "/" in each)
        return
    path = Path(rest if separator else scheme)
    for place in {path, path.absolute(), path.resolve()}:
        text = str(place)
        if "/" in text and text != "/":
            yield from (text, f"file://{text}")


def _pattern(root: str) -> re.Pattern[str]:
    # Not inside a longer name.
    return re.compile(rf"(?<![\w.-]){re.escape(root)}(?:(?P<slash>/+)(?=\w)|/*(?![\w-]|\.\w))")


def _name_below(found: re.Match[str]) -> str:
    return "" if found["slash"] else _THE_URL
