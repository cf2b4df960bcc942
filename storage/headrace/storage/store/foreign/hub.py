"""Pin datasets of the Hugging Face Hub to a commit when their store is opened.

A branch of the Hub moves while a run lasts. So a URL is resolved once, and everything that is
read through the store is of that commit, whose files never change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    HeadraceError,
    NotADatasetError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage.store.deadline import NoAnswerError, within
from headrace.storage.store.foreign.fsspec_store import FsspecStore
from headrace.storage.store.foreign.hub_splits import CARD_NAME, files_of, states
from headrace.storage.store.foreign.selected_store import SelectedStore
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.retry import call_with_retries
from headrace.storage.store.store import Store

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SCHEME = "hf"
DEADLINE_S = 20.0
"""For one question. Arbitrary: an answer takes 100 ms."""

_REPO = r"(?P<repo>[^/@]+/[^/@]+)"
_NAMED_REF = r"refs/(?:convert|pr)/[^/@]+"  # contains slashes, and is a revision all the same
_AFTER_REPO = re.compile(rf"{_REPO}@(?P<revision>{_NAMED_REF}|[^/@]+)(?P<path>/.*)?")
_AT_THE_END = re.compile(rf"{_REPO}(?P<path>/[^@]*)?(?:@(?P<revision>{_NAMED_REF}|[^/@]+))?")
_COMMIT = re.compile("[0-9a-f]{40}")
_MAX_TEXT = 300
_SPLIT_PARTS = 2  # CONFIG/SPLIT
_MAX_CARD_BYTES = 16 << 20  # arbitrary; those with thousands of configurations have 1 MiB
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A place in a dataset's repository.

    Attributes:
        repo: ``OWNER/NAME``.
        path: The folder or file, without slashes at its ends.
        revision: A branch, a tag, a commit or a reference such as ``refs/convert/parquet``.
    """

    repo: str
    path: str
    revision: str

    @property
    def url(self) -> str:
        """The URL, as file systems take it."""
        at = quote(self.revision, safe="")
        return f"{SCHEME}://datasets/{self.repo}@{at}/{self.path}".rstrip("/")


def hub_place(url: str) -> HubPlace:
    """Return the place of ``hf://datasets/OWNER/NAME[/PATH][@REVISION]``.

    The revision may also follow the name, as huggingface_hub has it.

    Raises:
        BadArgumentError: It is no such URL.
    """
    rest = url.removeprefix(f"{SCHEME}://datasets/").rstrip("/")
    found = _AFTER_REPO.fullmatch(rest) or _AT_THE_END.fullmatch(rest)
    if rest == url.rstrip("/") or found is None:
        raise BadArgumentError(
            f"{url[:200]!r} names no dataset of the Hub; expected "
            f"{SCHEME}://datasets/OWNER/NAME, then perhaps a path, @ and a revision",
            field="url",
        )
    return HubPlace(
        found["repo"], (found["path"] or "").strip("/"), unquote(found["revision"] or "main")
    )


def open_hub(url: str, *, options: StoreOptions) -> Store:
    """Open what a URL of the Hub means now, at its commit: a folder, or a split's files.

    Args:
        url: The URL. A path of two parts is a configuration and a split if the dataset's card
            states them, or else a folder, or else those that the names of its files show.
        options: Its ``fsspec`` may have the ``endpoint`` and the ``token``, as for the file system.

    Raises:
        BadArgumentError: It names no dataset.
        ConfigurationError: huggingface_hub is not installed; or the card cannot be understood, or
            its files are not read.
        NotADatasetError: There is neither such a folder nor such a split.
        ObjectNotFoundError: There is no such dataset or revision.
        StoreRefusedError: The Hub refuses.
        StoreUnavailableError: It cannot be reached, or does not answer in time.
    """
    place = _pinned(hub_place(url), options)
    # File systems read 5 MiB ahead, for programs that read files from front to back.
    ranged = replace(options, fsspec={"block_size": 1, **options.fsspec})
    parts = place.path.split("/")
    plain = FsspecStore(place.url, options=ranged)
    if len(parts) != _SPLIT_PARTS or any(part.startswith(("_", ".")) for part in parts):
        return plain
    config, split = parts
    whole = FsspecStore(replace(place, path="").url, options=ranged)
    try:
        card = _card(whole)
        if not states(config, split, card) and _is_there(place, options):
            return plain
        entries = {entry.name: entry for entry in whole.list_entries()}
        chosen = files_of(config, split, card, list(entries))
    except (ConfigurationError, NotADatasetError) as error:
        raise type(error)(f"{place.url}: {error.message}", url=place.url) from error
    endings = tuple({name[name.rindex(".") :] for name in chosen})
    inside = {name for name in entries if name.startswith(f"{place.path}/")}
    if inside >= set(chosen) and all(n in chosen for n in inside if n.endswith(endings)):
        return plain
    if inside:
        raise ConfigurationError(
            f"{place.url} is a folder, and a split of other files by the dataset's card, such as "
            f"{chosen[0]}; give a folder inside it, or the one that has the split's files",
            url=place.url,
        )
    return SelectedStore(place.url, whole, [entries[name] for name in chosen])


def _pinned(place: HubPlace, options: StoreOptions) -> HubPlace:
    """Return a place at the commit that its revision means now."""
    if _COMMIT.fullmatch(place.revision):
        return place

    def ask(api: HfApi) -> str:
        found = api.dataset_info(place.repo, revision=place.revision, timeout=DEADLINE_S / 2)
        return str(found.sha)

    return replace(place, revision=_asked(ask, place, options))


def _card(whole: Store) -> str:
    try:
        return whole.read(CARD_NAME, length=_MAX_CARD_BYTES).decode(errors="replace")
    except ObjectNotFoundError:
        return ""


def _is_there(place: HubPlace, options: StoreOptions) -> bool:
    def ask(api: HfApi) -> bool:
        found = api.get_paths_info(
            place.repo, [place.path], revision=place.revision, repo_type="dataset"
        )
        return bool(found)

    return _asked(ask, place, options)


def _asked(ask: Callable[[HfApi], _T], place: HubPlace, options: StoreOptions) -> _T:
    """Ask the Hub, in words of ours where it fails."""
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            f"{place.url} needs the huggingface_hub package: pip install 'headrace[hub]'",
            url=place.url,
        ) from error

    def question() -> _T:
        endpoint, token = (options.fsspec.get(name) for name in ("endpoint", "token"))
        api = HfApi(
            endpoint=None if endpoint is None else str(endpoint),
            token=None if token is None else str(token),
        )
        return ask(api)

    def attempt() -> _T:
        try:
            return within(DEADLINE_S, question, name="headrace-hub")
        except NoAnswerError:
            raise StoreUnavailableError(
                f"the Hub did not answer within {DEADLINE_S:g} s about {place.url}", url=place.url
            ) from None
        except Exception as error:
            raise _translated(error, place) from error

    return call_with_retries(attempt, options.retry)


def _translated(error: Exception, place: HubPlace) -> HeadraceError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", 0)
    first = str(error).strip().partition("\n")[0][:_MAX_TEXT]
    found = f"{type(error).__name__}: {first}"
    if "RevisionNotFoundError" in kinds:
        return ObjectNotFoundError(
            f"the dataset {place.repo} of the Hub has no revision {place.revision!r}", url=place.url
        )
    if "GatedRepoError" in kinds or status == 403:  # noqa: PLR2004 - as HTTP has it
        return StoreRefusedError(
            f"the Hub refuses {place.url}: {found}; accept the dataset's conditions there, and set "
            "HF_TOKEN where the data are read",
            url=place.url,
        )
    if "RepositoryNotFoundError" in kinds or status == 401:  # noqa: PLR2004 - as above
        return StoreRefusedError(
            f"the Hub has no dataset {place.repo}, or it is private: correct the name, or set "
            "HF_TOKEN where the data are read, which is each server, and for private servers each "
            "worker of the job",
            url=place.url,
        )
    return StoreUnavailableError(
        f"the Hub cannot be asked about {place.url}: {found}", url=place.url
    )
