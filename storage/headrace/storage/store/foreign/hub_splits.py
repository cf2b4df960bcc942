"""Find the files of a configuration's split, by a dataset's card or by the names of its files.

The rules are those of the library ``datasets``, so that the files are those which
``load_dataset(NAME, CONFIG, split=SPLIT)`` reads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml
from fsspec.utils import glob_translate

from headrace.errors import ConfigurationError, NotADatasetError

CARD_NAME = "README.md"
"""The file of a dataset's card."""

_FRONT = re.compile(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", re.DOTALL)
_IGNORED = {
    CARD_NAME,
    *("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json"),
}
_MAGIC = re.compile(r"[*?[]")
_SHARDED = re.compile(r"data/(?P<split>[^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_KEYWORDS = {
    "train": "train|training",
    "validation": "validation|valid|dev|val",
    "test": "test|testing|eval|evaluation",
}
_SEPARATOR = "[-._ 0-9]"
_READ = {".parquet": "Parquet", ".tar": "tar"}
# What `datasets` has builders for; other files of a repository say nothing about its format.
_DATA = {
    *_READ,
    *(".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".arrow", ".txt", ".xml", ".h5", ".hdf5"),
    *(".jpg", ".jpeg", ".png", ".webp", ".wav", ".mp3", ".flac", ".mp4", ".pdf", ".zip", ".gz"),
    *(".zst", ".lance", ".eval"),
}
_MOST = 20  # names in an error

_Patterns = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration of a dataset.

    Attributes:
        folder: The folder of its files, relative to the repository.
        patterns: Patterns of names by split; `None` if the names of files say which there are.
    """

    folder: str = ""
    patterns: _Patterns | None = None

    def splits(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of each split's files, by split, out of all names of the repository."""
        inner = [name for name in names if _below(name, self.folder) and _counts(name, self.folder)]
        if self.patterns is None:
            return _by_names({name[len(self.folder) :].lstrip("/"): name for name in inner})
        return {
            split: sorted({name for each in patterns for name in self._matching(each, names)})
            for split, patterns in self.patterns.items()
        }

    def _matching(self, pattern: str, names: Sequence[str]) -> Iterator[str]:
        whole = str(PurePosixPath(self.folder, pattern))
        if not _MAGIC.search(whole):
            if whole not in names:
                raise NotADatasetError(f"its card names the file {whole!r}, which is not there")
            yield whole
            return
        matches = re.compile(glob_translate(whole)).match
        ignored = _IGNORED - {PurePosixPath(whole).name}
        for name in names:
            file = name.rpartition("/")[2]
            if matches(name) and file not in ignored and _hidden(name) == _hidden(whole):
                yield name


def states(config: str, split: str, card: str) -> bool:
    """Return whether a card says which files a split has; one that is not understood does not."""
    try:
        stated = _configurations(card).get(config, Configuration())
    except ConfigurationError:
        return False
    return split in (stated.patterns or {})


def files_of(config: str, split: str, card: str, names: Sequence[str]) -> list[str]:
    """Return the names of a split's files.

    Args:
        config: The name of the configuration; without any in the card, there is ``default``.
        split: The name of the split.
        card: The text of the card.
        names: The names of all files of the repository.

    Raises:
        ConfigurationError: They are of a format that is not read, or the card is not understood.
        NotADatasetError: There is no such configuration or split; names those that exist.
    """
    known = _configurations(card) or {"default": Configuration()}
    found = known[config].splits(names).get(split, []) if config in known else []
    if not found:
        exist = [f"{name}/{each}" for name in known for each in known[name].splits(names)]
        shown = ", ".join(exist[:_MOST]) + ", …" * (len(exist) > _MOST)
        raise NotADatasetError(
            f"there is no folder and no file {config}/{split}, and no files of a split {split!r} "
            f"of a configuration {config!r}; there are {shown or 'no splits'}"
        )
    endings = Counter(each for name in found if (each := _ending(name)) in _DATA)
    most, _ = endings.most_common(1)[0] if endings else ("", 0)
    if most not in _READ:
        raise ConfigurationError(
            f"the files of {config}/{split} are {most or 'of no known kind'} ({found[0]}, …), and "
            f"headrace reads {' and '.join(_READ.values())} files in place; the Hub may have "
            f"converted them, as {config}/{split}@refs/convert/parquet"
        )
    return [name for name in found if _ending(name) == most]


def _configurations(card: str) -> dict[str, Configuration]:
    """Return the configurations that a card states, by name."""
    front = _FRONT.match(card)
    try:
        stated = yaml.safe_load(front[1]) if front else None
        configs = (stated or {}).get("configs") or []
        return {str(each["config_name"]): _configuration(each) for each in configs}
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        found = str(error).partition("\n")[0][:200]
        raise ConfigurationError(
            f"the configs of its card are not understood ({type(error).__name__}: {found}); give a "
            "folder of it"
        ) from None


def _configuration(stated: Any) -> Configuration:
    files = stated.get("data_files")
    folder = str(PurePosixPath(stated.get("data_dir") or ""))
    folder = "" if folder == "." else folder
    if files is None:
        return Configuration(folder)
    if isinstance(files, list) and any(isinstance(each, dict) for each in files):
        splits = [str(each["split"]) for each in files]
        if len(set(splits)) < len(splits):
            raise ValueError("a split is there twice")
        patterns = {str(each["split"]): _texts(each["path"]) for each in files}
        return Configuration(folder, patterns)
    return Configuration(folder, {"train": _texts(files)})


def _texts(stated: Any) -> tuple[str, ...]:
    found = tuple(stated) if isinstance(stated, list) else (stated,)
    for each in found:
        if not isinstance(each, str) or "://" in each or each.startswith("/"):
            raise ValueError(f"{each!r} is not a pattern of names in the repository")
    return found


def _by_names(inner: Mapping[str, str]) -> dict[str, list[str]]:
    """Return names by split as their folders or files are called; all are ``train`` otherwise.

    Args:
        inner: Names in the repository by names relative to the configuration's folder.
    """
    sharded: dict[str, list[str]] = {}
    for name in sorted(inner):
        if found := _SHARDED.fullmatch(name):
            sharded.setdefault(found["split"], []).append(inner[name])
    if sharded:
        return sharded
    for after in (rf"({_SEPARATOR}[^/]*)?/.*", rf"{_SEPARATOR}[^/]*"):  # folders, then files
        found_splits = {}
        for split, words in _KEYWORDS.items():
            matches = re.compile(rf"(.*/)?([^/]*{_SEPARATOR})?({words}){after}").fullmatch
            if names := [inner[name] for name in sorted(inner) if matches(name)]:
                found_splits[split] = names
        if found_splits:
            return found_splits
    return {"train": [inner[name] for name in sorted(inner)]} if inner else {}


def _below(name: str, folder: str) -> bool:
    return not folder or name.startswith(f"{folder}/")


def _counts(name: str, folder: str) -> bool:
    return name.rpartition("/")[2] not in _IGNORED and _hidden(name) == _hidden(f"{folder}/*")


def _hidden(name: str) -> tuple[int, int]:
    """Return how many parts of a name are hidden: patterns find these only if they say so."""
    *folders, file = name.split("/")
    special = sum(part.startswith("__") for part in folders)
    return special, sum(part.startswith(".") and set(part) != {"."} for part in [*folders, file])


def _ending(name: str) -> str:
    return PurePosixPath(name).suffix.lower()
