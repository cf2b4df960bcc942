"""Names of objects in a store: relative, printable, and never outside the root."""

from __future__ import annotations

from functools import lru_cache

from headrace.errors import BadArgumentError

MAX_NAME_BYTES = 512  # S3 allows 1024 for prefix and name together


@lru_cache(maxsize=4096)  # called for each block that is read, for the same shards again and again
def name_problem(name: str) -> str | None:
    """Return why ``name`` may not be used in a store; None if it may.

    A name is one or more parts joined by ``/``. A part is printable, contains no backslash and is
    not empty, ``.`` or ``..``.
    """
    if not name or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        return f"a name has 1 to {MAX_NAME_BYTES} bytes"
    if not name.isprintable() or "\\" in name:
        return "a name contains no control characters and no backslash"
    if any(part in {"", ".", ".."} for part in name.split("/")):
        return "a name is relative, with no empty part and no '.' or '..'"
    return None


def check_below(name: str) -> None:
    """Refuse a name that could lead out of the store's root, but no other names of other programs.

    Raises:
        BadArgumentError: A part of it is ``.`` or ``..``.
    """
    if "." in name and not {".", ".."}.isdisjoint(name.split("/")):
        raise BadArgumentError(
            f"object name {name[:200]!r}: a name has no part '.' or '..'", field="name"
        )


def check_name(name: str) -> None:
    """Refuse a name that could lead out of the store's root.

    Raises:
        BadArgumentError: The name breaks a rule; the message states both.
    """
    problem = name_problem(name)
    if problem is not None:
        raise BadArgumentError(f"object name {name[:200]!r}: {problem}", field="name")
