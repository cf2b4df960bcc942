"""What the argument ``dataset`` describes, and where its datasets lie, if that is known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.arguments import split_source, with_source
from headrace.client.options.mixture import Mixture, source_of
from headrace.client.options.selection import Selection
from headrace.client.servers.private_server import name_of_source
from headrace.client.state.mixture_subject import MixtureSubject
from headrace.client.state.subject import Subject, one_dataset
from headrace.errors import BadArgumentError

Source = str | Selection | Mixture | Sequence[tuple[str, float]]
"""What a dataset object reads: a name, some of its samples, or several of which it draws."""


def split_rows(dataset: str) -> tuple[str, str]:
    """Return the name or URL of a dataset, and ``:LENGTH`` if its packed rows are meant, or ''."""
    index, source = split_source(dataset)
    found = _ROWS.fullmatch(index)
    return (dataset, "") if found is None else (with_source(found["source"], source), found["rows"])


# Names hold no colon, and a dataset's URL ends in a folder, not in a port.
_ROWS = re.compile(r"(?P<source>.*[^:])(?P<rows>:[0-9]{1,7})", re.DOTALL)


def subject_of(
    dataset: Source, *, is_private: bool, url: str | Mapping[str, str] | None = None
) -> tuple[Subject, dict[str, str | None]]:
    """Return what is read, and the URL of each name, if known.

    Args:
        dataset: Name, selection, mixture, or pairs of name and proportion; with URLs as names if
            private.
        is_private: Whether a private server reads it.
        url: Its URL, if names are not URLs; for a mixture, URLs by name.

    Raises:
        BadArgumentError: It is an impossible mixture.
    """
    found = source_of(dataset)
    if isinstance(found, Selection):
        source, rows = split_rows(found.name)
        name = name_of_source(source) if is_private else source
        known = url if url is None or isinstance(url, str) else url.get(name)
        return one_dataset(found, name + rows), {name: source if is_private else known}
    mixture = found
    if not is_private:
        places = url if isinstance(url, Mapping) else {}
        return MixtureSubject(mixture=mixture), {
            name: places.get(name)
            for name in (split_rows(entry.name)[0] for entry in mixture.datasets)
        }
    sources = [split_rows(entry.name) for entry in mixture.datasets]
    urls: dict[str, str | None] = {name_of_source(source): source for source, _ in sources}
    if len(urls) < len(mixture.datasets):
        raise BadArgumentError(
            "two URLs of the mixture end in the same name, and a private server names its datasets "
            "so; expected folders with different names",
            field="dataset",
        )
    entries = (
        replace(entry, name=name_of_source(source) + rows)
        for entry, (source, rows) in zip(mixture.datasets, sources, strict=True)
    )
    return MixtureSubject(mixture=replace(mixture, datasets=tuple(entries))), urls
