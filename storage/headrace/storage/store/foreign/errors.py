"""Translate errors of fsspec's file systems, which raise whatever their clients raise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http import HTTPStatus

from headrace.errors import (
    HeadraceError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage.store.byte_range import WrongBytesError
from headrace.storage.store.os_errors import translated
from headrace.storage.store.safe_url import safe_url

LACKING = "lacking"
"""A key of the metadata of `StoreRefusedError`: no credentials would help."""

_MAX_TEXT = 300
_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
# What a later attempt does not change; the rest may pass.
_LACKING = {HTTPStatus.BAD_REQUEST, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
# Errors of google-auth and azure-identity, which repeat what a helper program or a service said.
_NO_KEYS = {"GoogleAuthError", "ClientAuthenticationError"}
_FORBIDDEN = "Forbidden: "  # gcsfs raises an `OSError` with this text, and no number


@contextlib.contextmanager
def translated_fsspec(name: str, url: str) -> Iterator[None]:
    """Raise our errors in place of those of a file system.

    Args:
        name: The name of the requested object.
        url: The URL of its store.

    Raises:
        ObjectNotFoundError: There is no such object, or no container or bucket for it.
        StoreRefusedError: Access is refused, or the file system cannot do this.
        StoreUnavailableError: Anything else failed. The clients of some stores have errors of
            their own, such as those of aiohttp, which have no common root.
    """
    place = f"{name} in {url}" if name else url
    try:
        with translated(name, url, advice="check the credentials"):
            try:
                yield
            except OSError as error:
                if str(error).startswith(_FORBIDDEN):
                    raise PermissionError(text_of(error)) from error
                raise
    except WrongBytesError as error:
        raise error.at(place) from error
    except (HeadraceError, ImportError, TypeError):  # the last two are not the world's fault
        raise
    except NotImplementedError as error:
        raise StoreRefusedError(
            f"{place} needs an operation that its file system lacks: {error!r}; use another store",
            url=url,
            name=name,
            **{LACKING: True},
        ) from error
    except Exception as error:
        raise _translated_answer(error, name, url, place) from error


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error of a client; 0 if it has none."""
    for attribute in ("status_code", "status", "code"):
        found = getattr(error, attribute, None)
        if isinstance(found, int):
            return int(found)
    return 0


def text_of(error: BaseException) -> str:
    """Return the type and the first line of an error; some hold a page of XML."""
    first = str(error).strip().partition("\n")[0]
    return safe_url(f"{type(error).__name__}: {first}")[:_MAX_TEXT]


def _translated_answer(error: Exception, name: str, url: str, place: str) -> HeadraceError:
    status = status_of(error)
    if not status and _NO_KEYS & {kind.__name__ for kind in type(error).__mro__}:
        text = f"no credentials for {place}: {text_of(error)}"
        return StoreUnavailableError(text, url=url, name=name)
    code = getattr(error, "error_code", None)  # of Azure
    code = str(getattr(code, "value", code) or "")
    answer = " ".join(filter(None, [str(status or ""), code]))
    found = f"{text_of(error)} ({answer})" if answer else text_of(error)
    if status == HTTPStatus.NOT_FOUND:
        text = f"there is no {place}"
        if code == "ContainerNotFound":
            text = f"there is no container for {place}; create it, or correct the URL"
        return ObjectNotFoundError(f"{text}: {found}", url=url, name=name)
    if status in _REFUSED:
        return StoreRefusedError(
            f"the store refuses {place}: {found}; check the credentials and their permissions",
            url=url,
            name=name,
        )
    if status in _LACKING:
        return StoreRefusedError(
            f"the store refuses the request for {place}: {found}",
            url=url,
            name=name,
            **{LACKING: True},
        )
    return StoreUnavailableError(f"the store failed at {place}: {found}", url=url, name=name)
