"""Send errors from a task to the driver through Spark, which only passes text."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import zlib
from collections.abc import Callable, Iterator

import headrace.errors
from headrace.errors import (
    BadArgumentError,
    HeadraceError,
    InternalError,
    UnsupportedColumnError,
)

_PACKED = re.compile(r"\[headrace ([A-Za-z0-9+/=]+)\]")
_MAX_CHARACTERS = 6000  # of a message; Spark Connect cuts much longer ones


@contextlib.contextmanager
def packed_for_driver(tell: Callable[[str], None] | None = None) -> Iterator[None]:
    """Raise our errors so that `error_in` finds them complete in Spark's message.

    Args:
        tell: Takes the text of an error of which `says_all` is true, which then ends the task
            without failing it: Spark would log a failure with some 80 lines of Java, and try the
            task again with the same values.
    """
    try:
        yield
    except HeadraceError as error:
        packed = _packed(error)
        if tell is None or not says_all(error):
            raise type(error)(f"{error.message}\n{packed}") from error
        tell(packed)


def says_all(error: HeadraceError) -> bool:
    """Return whether a message is all that there is to know: values that cannot be stored.

    Of what a caller's function raised, the traceback says more.
    """
    about_values = isinstance(error, BadArgumentError | UnsupportedColumnError)
    return about_values and error.metadata.get("field") != "function"


def error_in(text: str) -> HeadraceError | None:
    """Return the error that a task raised, from Spark's message.

    Returns:
        `None` if the task did not fail with one of our errors.
    """
    found = _PACKED.findall(text)
    if not found:
        return None
    try:
        content = json.loads(zlib.decompress(base64.b64decode(found[-1])))
    except (ValueError, zlib.error) as error:
        raise InternalError(f"a task's error did not arrive completely: {error}") from error
    kind: type[HeadraceError] = getattr(headrace.errors, content["kind"])
    assert issubclass(kind, HeadraceError)
    return kind(content["message"], **content["metadata"])


def _packed(error: HeadraceError) -> str:
    content = {
        "kind": type(error).__name__,
        "message": error.message[:_MAX_CHARACTERS],
        "metadata": error.metadata,
    }
    packed = zlib.compress(json.dumps(content).encode())
    return f"[headrace {base64.b64encode(packed).decode()}]"
