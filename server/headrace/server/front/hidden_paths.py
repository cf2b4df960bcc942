"""Errors as clients on other machines see them: they name files relative to the dataset only.

Only the operator may know where a dataset lies, and what else the server's disks hold. Whoever
calls over a unix socket is on the same machine and is told full paths, as the log is.

Three things are done with a text, in this order:

1. What begins with the URL of a dataset, in any of its spellings, is named relative to it.
2. The id of the store's access key is hidden.
3. What is still a URL or an absolute path is hidden: the store's endpoint, files beside datasets,
   what a transform says.

Errors that repeat the caller's own words have no places in them and stay as they are: else a caller
could try which paths there are by naming them.
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
    RingUnavailableError,
    StepFailedError,
    UnsupportedColumnError,
)

_THE_URL = "the dataset's URL"
_HIDDEN = "(hidden)"

# Faults of the caller that are found in files all the same.
_FOUND_IN_FILES = (
    ConfigurationError,
    NotADatasetError,
    RingUnavailableError,
    StepFailedError,
    UnsupportedColumnError,
)
# As `headrace.storage.store` names the credentials that a store refuses.
_ACCESS_KEY = re.compile(r"\baccess key [^\s;,()]+")
# URLs of datasets that are not served any more whose streams may still fail; with more, the names
# below the oldest are hidden as all other paths are (arbitrary).
MOST_PLACES = 16_384
_LOCAL_SCHEMES = frozenset({"file", "local"})
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*[^\s'\"<>.,;:)]")
_QUOTED_PATH = re.compile(r"(?P<quote>['\"])/[^'\"/]+/[^'\"]*(?P=quote)")
_PATH = re.compile(r"(?<![\w.:/)\]-])/[^\s/'\"<>:;,]+(?:/[^\s/'\"<>:;,]*)+")


class DatasetPlaces:
    """Knows where datasets lie; safe for several threads.

    Datasets that are served no more stay known, since their streams may still fail; of more URLs
    than ``most`` the one that was added or seen again longest ago is forgotten.

    Args:
        most: URLs.
    """

    def __init__(self, most: int = MOST_PLACES) -> None:
        self._most = most
        self._urls: dict[str, tuple[str, ...]] = {}
        # Replaced as a whole and never changed, so that readers need no lock. The longest first.
        self._roots: tuple[str, ...] = ()

    def add(self, url: str) -> None:
        """Take note of the URL of a dataset."""
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
        # No request has a field of that name.
        return error.metadata.get("field") == "url"
    return isinstance(error, _FOUND_IN_FILES) or not isinstance(error, CallerError)


def _spellings(url: str) -> Iterator[str]:
    """Return how messages may write the URL of a dataset; each has a slash in it."""
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
    # Not inside of a longer name.
    return re.compile(rf"(?<![\w.-]){re.escape(root)}(?:(?P<slash>/+)(?=\w)|/*(?![\w-]|\.\w))")


def _name_below(found: re.Match[str]) -> str:
    return "" if found["slash"] else _THE_URL
