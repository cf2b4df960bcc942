"""Find the splits and classes of a folder of images from its names alone.

Ambiguous names are refused with what was found, never guessed, since a wrong label would not be
noticed.

| names below SRC | what they mean |
| --- | --- |
| ``x.jpg`` alone | no labels |
| ``class/x.jpg`` alone | the folder is the class |
| ``train/…``, ``val/…``, ``test/…`` and nothing else | splits; below each, one of the two above |
| anything else | refused, unless ``label`` says which folder is the class |
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from headrace.converter.images.listing import Listing
from headrace.converter.images.options import ImageOptions, Label
from headrace.converter.samples.splits import SPLIT_NAMES
from headrace.errors import BadArgumentError

IMAGE_FORMATS = {
    ".bmp": "bmp",
    ".gif": "gif",
    ".jpeg": "jpeg",
    ".jpg": "jpeg",
    ".png": "png",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".webp": "webp",
}
"""Formats by the endings of names, in lower case."""

MAX_IMAGE_BYTES = (1 << 31) - (1 << 20)
"""The most bytes of one file: a block has less than 2 GiB, including labels and offsets."""

_MAX_NAME_BYTES = 512  # as stores have it
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FilesLeftOut:
    """Files of SRC that are not in a dataset, for one reason.

    Attributes:
        kind: Their kind: ``file``, ``folder`` or ``link``.
        reason: Why: such as ``not an image by its name``.
        names: The names of the files.
    """

    kind: str
    reason: str
    names: tuple[str, ...]

    @property
    def count(self) -> int:
        """Return the number of files."""
        return len(self.names)

    def __str__(self) -> str:
        kind = self.kind if self.count == 1 else f"{self.kind}s"
        return f"{self.count:,} {kind} ({self.reason}): {shown_names(self.names)}"


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """The datasets that a folder of images becomes.

    Attributes:
        splits: The images of each split, in the order of their names: name, size in bytes, and
            number of the class, or `None` in a split without labels. ``""`` is all of them.
        classes: The class names; empty without labels.
        left_out: The files that are in none of them.
    """

    splits: Mapping[str, Sequence[tuple[str, int, int | None]]]
    classes: tuple[str, ...]
    left_out: tuple[FilesLeftOut, ...]


@dataclass(slots=True)
class _PlanBuilder:
    """Files being sorted into the plan."""

    place: str
    skip: bool
    left_out: list[FilesLeftOut] = field(default_factory=list)

    def leave_out(self, kind: str, reason: str, names: Iterable[str]) -> None:
        if found := tuple(sorted(names)):
            self.left_out.append(FilesLeftOut(kind, reason, found))

    def fault(self, reason: str, names: Iterable[str], advice: str) -> None:
        """Leave out invalid files if requested, else refuse them."""
        if not (found := tuple(names)):
            return
        if not self.skip:
            raise BadArgumentError(
                f"below {self.place}: {FilesLeftOut('file', reason, found)}; {advice}, or leave "
                "such files out with on_error='skip'",
                field="SRC",
            )
        self.leave_out("file", reason, found)


def plan_folder(
    listing: Listing,
    *,
    place: str,
    known: Sequence[str] = (),
    how: ImageOptions | None = None,
) -> FolderPlan:
    """Return the splits and classes of a folder.

    Args:
        listing: The files in the folder.
        place: The URL of the folder, for errors.
        known: The classes of the dataset to append to; new ones get numbers after them.
        how: The caller's options; `None` for defaults.

    Raises:
        BadArgumentError: There is no image, names are ambiguous, or a name cannot be stored; lists
            what was found.
    """
    label = how.label if how else None
    sorting = _PlanBuilder(place, skip=how is not None and how.on_error == "skip")
    images = _images(listing, sorting)
    split_of = _split_finder(images, place)
    parts: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, size in images:
        parts[split_of(name)].append((name, size))
    classed = {
        split: _with_class_names(split, files, label, sorting) for split, files in parts.items()
    }
    if not any(classed.values()):
        raise BadArgumentError(
            f"all images below {place} are left out: {'; '.join(map(str, sorting.left_out))}",
            field="SRC",
        )
    found = {of for files in classed.values() for _, _, of in files if of is not None}
    if label is None:
        _refuse_look_alikes({*found, *known}, place)
    classes = (*known, *sorted(found - set(known)))
    _note_empty_folders(listing, classed, sorting)
    numbers = {name: number for number, name in enumerate(classes)}
    return FolderPlan(
        {
            split: [(name, size, None if of is None else numbers[of]) for name, size, of in files]
            for split, files in sorted(classed.items())
        },
        classes if found else (),
        tuple(sorting.left_out),
    )


def format_by_name(name: str) -> str | None:
    """Return the format according to a file's name, or None."""
    return IMAGE_FORMATS.get(PurePosixPath(name).suffix.lower())


def shown_names(names: Sequence[str]) -> str:
    """Format some names for people, with bytes that are not text escaped."""
    listed = ", ".join(name if name.isprintable() else ascii(name)[1:-1] for name in names[:_SHOWN])
    return listed if len(names) <= _SHOWN else f"{listed} and {len(names) - _SHOWN:,} more"


def _images(listing: Listing, sorting: _PlanBuilder) -> list[tuple[str, int]]:
    images = [(name, size) for name, size in listing.files if format_by_name(name)]
    others = [name for name, _ in listing.files if not format_by_name(name)]
    if not images:
        raise BadArgumentError(
            f"there is no image below {sorting.place}; found {_kinds(others) or 'nothing'}, "
            f"expected names that end with {', '.join(sorted(IMAGE_FORMATS))}",
            field="SRC",
        )
    sorting.leave_out("file", f"not an image by its name, {_kinds(others)}", others)
    sorting.leave_out("link", "back to a folder that contains it", listing.loops)
    sorting.leave_out("link", "to nothing, or not to a file", listing.strange)
    bad = {name for name, _ in images if not _is_plain(name)}
    sorting.fault(
        f"its name is not printable UTF-8 of at most {_MAX_NAME_BYTES} bytes",
        sorted(bad),
        "rename them",
    )
    large = {name for name, size in images if size > MAX_IMAGE_BYTES}
    sorting.fault(f"more than {MAX_IMAGE_BYTES:,} bytes", sorted(large), "make them smaller")
    empty = {name for name, size in images if not size}
    sorting.fault("empty", sorted(empty), "copy them again")
    return [(name, size) for name, size in images if name not in bad | large | empty]


def _is_plain(name: str) -> bool:
    is_short = len(name.encode(errors="replace")) <= _MAX_NAME_BYTES
    return is_short and name.isprintable() and "\\" not in name


def _kinds(names: Sequence[str]) -> str:
    counts = Counter(PurePosixPath(name).suffix.lower() or "no ending" for name in names)
    return ", ".join(f"{count:,} {suffix}" for suffix, count in counts.most_common(_SHOWN))


def _split_finder(images: Sequence[tuple[str, int]], place: str) -> Callable[[str], str]:
    """Return a function from a file's name to its split."""
    tops = Counter(name.split("/", 1)[0] if "/" in name else "" for name, _ in images)
    named = {top for top in tops if top.lower() in SPLIT_NAMES}
    if named and len(named) == len(tops):
        return lambda name: name.split("/", 1)[0]
    nested = any(name.split("/", 1)[0] in named and name.count("/") > 1 for name, _ in images)
    if len(named) > 1 or nested:
        found = ", ".join(
            f"{count:,} in {top}/" if top else f"{count:,} in no folder"
            for top, count in tops.most_common(2 * _SHOWN)
        )
        raise BadArgumentError(
            f"{', '.join(sorted(named))} below {place} may be splits or classes, since there are "
            f"images beside them: {found}; move elsewhere what is not a split, or convert one "
            "folder at a time",
            field="SRC",
        )
    return lambda _: ""


def _with_class_names(
    split: str, files: Sequence[tuple[str, int]], label: Label | None, sorting: _PlanBuilder
) -> list[tuple[str, int, str | None]]:
    folders = {name: _folders(split, name) for name, _ in files}
    depths = Counter(len(above) for above in folders.values())
    if label == "none" or (label is None and set(depths) == {0}):
        return [(name, size, None) for name, size in files]
    if label is None and set(depths) != {1}:
        raise BadArgumentError(_doubt(sorting.place, split, folders), field="label")
    at = -1 if label == "last" else 0
    loose = [name for name, above in folders.items() if not above]
    sorting.fault("not in a folder that could be its class", loose, "move each into one")
    return [(name, size, folders[name][at]) for name, size in files if folders[name]]


def _folders(split: str, name: str) -> list[str]:
    below = name[len(split) + 1 :] if split else name
    return below.split("/")[:-1]


def _doubt(place: str, split: str, folders: Mapping[str, Sequence[str]]) -> str:
    where = f"{place}/{split}" if split else place
    examples: dict[int, list[str]] = defaultdict(list)
    for name, above in folders.items():
        examples[len(above)].append(name)
    found = "; ".join(
        f"{len(names):,} in {depth} folders, such as {names[0]}"
        if depth
        else f"{len(names):,} in no folder, such as {names[0]}"
        for depth, names in sorted(examples.items())
    )
    return (
        f"images below {where} are at several depths, or more than one folder deep, so their class "
        f"is ambiguous: {found}; give label='first' (the folder right below it), label='last' (the "
        "folder that contains the image) or label='none'"
    )


def _refuse_look_alikes(names: Iterable[str], place: str) -> None:
    """Refuse classes that differ only in case, Unicode composition or blanks."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        alike[unicodedata.normalize("NFC", name).casefold().strip()].append(name)
    doubles = [group for group in alike.values() if len(group) > 1]
    if doubles:
        shown = "; ".join(" and ".join(map(repr, group)) for group in doubles[:_SHOWN])
        raise BadArgumentError(
            f"classes of {place} may be the same, but would be two: {shown}; rename one of the "
            "folders, or give label='first' to keep both",
            field="label",
        )


def _note_empty_folders(
    listing: Listing,
    classed: Mapping[str, Sequence[tuple[str, int, str | None]]],
    sorting: _PlanBuilder,
) -> None:
    """Count the folders beside class folders that have no images, which are not classes."""
    for split, files in classed.items():
        if all(of is None for _, _, of in files):
            continue
        held = {_folders(split, name)[0] for name, _, _ in files if _folders(split, name)}
        prefix = f"{split}/" if split else ""
        empty = [
            folder
            for folder in listing.folders
            if folder.startswith(prefix)
            and "/" not in folder[len(prefix) :]
            and folder[len(prefix) :] not in held
        ]
        sorting.leave_out("folder", "no image in it, so no class", sorted(empty))
