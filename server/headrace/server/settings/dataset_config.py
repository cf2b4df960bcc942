"""The settings of one served dataset."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headrace.errors import ConfigurationError
from headrace.storage import SourceOptions, StoreOptions, index_options

_VERSIONED = re.compile(r"(?P<url>.+)#(?P<fingerprint>[0-9a-f]{32})")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """The URL, the store and the layout of one served dataset.

    Each dataset has its own options, so datasets of one server may be in stores with different
    endpoints and credentials.

    Attributes:
        url: Its URL; a ``#`` followed by a fingerprint selects an older version. ``INDEX from
            SOURCE`` sets ``source.index_of``, too.
        store: The endpoint, the credentials and other options of its store.
        source: Its layout, and options for it, such as pickled columns or a table version.
        item_nulls: Whether its lists may contain null items; `None` means the server's
            ``item_nulls``.
        skips: Files with ids of samples that jobs may skip, one id per line; requests name a file
            by its digest.
    """

    url: str
    store: StoreOptions = field(default_factory=StoreOptions)
    source: SourceOptions = field(default_factory=SourceOptions)
    item_nulls: bool | None = None
    skips: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.url:
            raise ConfigurationError("a dataset has no url; give one, such as s3://bucket/flights")
        url, source = index_options(self.url, self.source)
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "source", source)

    @property
    def place(self) -> tuple[str, str | None]:
        """Return the URL without its fragment, and the fingerprint if one is given."""
        found = _VERSIONED.fullmatch(self.url)
        return (self.url, None) if found is None else (found["url"], found["fingerprint"])
