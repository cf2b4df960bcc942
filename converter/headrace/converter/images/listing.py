"""List the names and sizes below a URL, without hidden files and folders.

Links to folders are followed, since class folders are often links, except those back to a folder
that contains them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.errors import StoreRefusedError
from headrace.storage import StoreOptions, open_store


@dataclass(frozen=True, slots=True)
class Listing:
    """The files below a URL, in the order of their names.

    Attributes:
        files: The name, relative to the URL, and the size in bytes of each file.
        folders: The folders, including empty ones; none in stores without folders.
        loops: Links back to a folder that contains them.
        strange: Entries that are neither files nor folders, such as links to nothing.
    """

    files: list[tuple[str, int]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)


def list_files(url: str, *, options: StoreOptions) -> Listing:
    """List everything below a URL that is not hidden; a hidden folder hides its contents.

    Raises:
        StoreRefusedError: The store refuses.
        StoreUnavailableError: The store cannot be reached.
    """
    found = Listing()
    with contextlib.closing(open_store(url, options=options)) as store:
        if "://" not in store.url and os.path.isdir(store.url):  # noqa: PTH112 - as the walk below
            _walk(store.url, "", found, above=frozenset({_identity(os.stat(store.url))}))  # noqa: PTH116
        else:
            found.files.extend(
                (entry.name, entry.stored_bytes)
                for entry in store.list_entries()
                if not entry.name.endswith("/") and not _is_hidden(entry.name)
            )
    found.files.sort()
    return found


def _walk(root: str, prefix: str, found: Listing, *, above: frozenset[tuple[int, int]]) -> None:
    for entry in _visible(f"{root}/{prefix}"):
        name = prefix + entry.name
        if _is_folder(entry):
            identity = _identity(entry.stat())
            if identity in above:
                found.loops.append(name)
            else:
                found.folders.append(name)
                _walk(root, f"{name}/", found, above=above | {identity})
        elif _is_file(entry):
            found.files.append((name, entry.stat().st_size))
        else:
            found.strange.append(name)


def _visible(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = os.scandir(folder)
    except PermissionError as error:
        raise StoreRefusedError(
            f"the system refuses access to {folder} ({error.strerror}) as user {os.getuid()}; "
            "check owner and mode",
            url=folder,
        ) from error
    with entries:
        yield from (entry for entry in entries if not entry.name.startswith("."))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def _identity(state: os.stat_result) -> tuple[int, int]:
    return state.st_dev, state.st_ino


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
