"""The settings of one served dataset."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headrace.errors import ConfigurationError
from headrace.storage import SourceOptions, StoreOptions

_VERSIONED = re.compile(r"(?P<url>.+)#(?P<fingerprint>[0-9a-f]{32})")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """Where one dataset lies, as whom it is reached, and how it is read.

    Its options are its own: two datasets of one server may lie in stores with other endpoints and
    other credentials.

    Attributes:
        url: Its place; ``#`` and a fingerprint behind it name an older version.
        store: How its store is reached and as whom.
        source: Which layout it has, and what is allowed: pickled columns, a version of a table.
        item_nulls: Whether its lists may hold null items; `None` is the server's ``item_nulls``.
        skips: Files of sample ids that jobs may leave out, one id a line: each file is a list that
            requests name by its digest.
    """

    url: str
    store: StoreOptions = field(default_factory=StoreOptions)
    source: SourceOptions = field(default_factory=SourceOptions)
    item_nulls: bool | None = None
    skips: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.url:
            raise ConfigurationError("a dataset has no url; give one, such as s3://bucket/flights")

    @property
    def place(self) -> tuple[str, str | None]:
        """Return the URL alone, and the fingerprint of the version if one is named."""
        found = _VERSIONED.fullmatch(self.url)
        return (self.url, None) if found is None else (found["url"], found["fingerprint"])
