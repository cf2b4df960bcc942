"""Replace an object only if nobody else has, although the answer may be lost."""

from __future__ import annotations

from headrace.errors import CommitConflictError
from headrace.storage.store.store import Store, Version


def write_unless_changed(
    store: Store, name: str, content: bytes, *, replaced: Version | None
) -> None:
    """Write an object if it is unchanged; on a conflict, read it back.

    A write that is sent again because its answer was lost finds its own object.

    Args:
        store: The store.
        name: The name of the object.
        content: Its content, which no other writer would write.
        replaced: The version of the existing object, or `None` if there is none.

    Raises:
        CommitConflictError: Another writer has changed it.
    """
    try:
        if replaced is None:
            store.write_if_absent(name, content)
        else:
            store.write_if_unchanged(name, content, replaced)
    except CommitConflictError:
        if store.read(name) != content:
            raise
