"""Translate errors of the operating system, which the file systems of fsspec raise as well."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from headrace.errors import ObjectNotFoundError, StoreRefusedError, StoreUnavailableError
from headrace.storage.store.safe_url import safe_url


@contextlib.contextmanager
def translated(name: str, url: str, *, advice: str) -> Iterator[None]:
    """Raise our errors in place of those of the operating system.

    Args:
        name: The name of the requested object.
        url: The URL of its store.
        advice: What to do if access is refused.

    Raises:
        ObjectNotFoundError: There is no such object.
        StoreRefusedError: Access is refused.
        StoreUnavailableError: Anything else failed.
    """
    place = f"{name} in {url}"
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ObjectNotFoundError(f"there is no {place}", url=url, name=name) from error
    except PermissionError as error:
        raise StoreRefusedError(
            f"access to {place} is refused: {_text(error)}; {advice}", url=url, name=name
        ) from error
    except OSError as error:
        raise StoreUnavailableError(
            f"the store failed at {place}: {_text(error)}", url=url, name=name
        ) from error


def _text(error: OSError) -> str:
    if error.strerror and error.filename:
        # Often a folder on the way, and not the file that is asked for.
        return f"{error.strerror} at {safe_url(os.fsdecode(error.filename))}"
    return error.strerror or safe_url(str(error))
