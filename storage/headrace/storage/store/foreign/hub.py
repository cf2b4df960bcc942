"""Pin datasets of the Hugging Face Hub to a commit when their store is opened.

A branch of the Hub moves while a run lasts. So a URL is resolved once, and everything that is
read through the store is of that commit, whose files never change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    HeadraceError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage.store.deadline import NoAnswerError, within
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.retry import call_with_retries

SCHEME = "hf"
DEADLINE_S = 20.0
"""For one question. Arbitrary: an answer takes 100 ms."""

_REPO = r"(?P<repo>[^/@]+/[^/@]+)"
_NAMED_REF = r"refs/(?:convert|pr)/[^/@]+"  # contains slashes, and is a revision all the same
_AFTER_REPO = re.compile(rf"{_REPO}@(?P<revision>{_NAMED_REF}|[^/@]+)(?P<path>/.*)?")
_AT_THE_END = re.compile(rf"{_REPO}(?P<path>/[^@]*)?(?:@(?P<revision>{_NAMED_REF}|[^/@]+))?")
_COMMIT = re.compile("[0-9a-f]{40}")
_MAX_TEXT = 300


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


def pinned(url: str, *, options: StoreOptions) -> str:
    """Return the URL of the commit that a URL of the Hub means now.

    Args:
        url: The URL.
        options: Its ``fsspec`` may have the ``endpoint`` and the ``token``, as for the file system.

    Raises:
        BadArgumentError: It names no dataset.
        ConfigurationError: huggingface_hub is not installed.
        ObjectNotFoundError: There is no such dataset or revision.
        StoreRefusedError: The Hub refuses.
        StoreUnavailableError: It cannot be reached, or does not answer in time.
    """
    place = hub_place(url)
    if _COMMIT.fullmatch(place.revision):
        return place.url
    commit = call_with_retries(lambda: _commit_of(place, options), options.retry)
    return HubPlace(place.repo, place.path, commit).url


def ranged(options: StoreOptions) -> StoreOptions:
    """Return options with which the Hub's file system reads ranges and no more.

    It would read 5 MiB ahead of each, for programs that read files from front to back.
    """
    return replace(options, fsspec={"block_size": 1, **options.fsspec})


def _commit_of(place: HubPlace, options: StoreOptions) -> str:
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            f"{place.url} needs the huggingface_hub package: pip install 'headrace[hub]'",
            url=place.url,
        ) from error

    def ask() -> str:
        endpoint, token = (options.fsspec.get(name) for name in ("endpoint", "token"))
        api = HfApi(
            endpoint=None if endpoint is None else str(endpoint),
            token=None if token is None else str(token),
        )
        found = api.dataset_info(place.repo, revision=place.revision, timeout=DEADLINE_S / 2)
        return str(found.sha)

    try:
        return within(DEADLINE_S, ask, name="headrace-hub")
    except NoAnswerError:
        raise StoreUnavailableError(
            f"the Hub did not answer within {DEADLINE_S:g} s about {place.url}", url=place.url
        ) from None
    except Exception as error:
        raise _translated(error, place) from error


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
