"""Notes of writers at work: `headrace gc` leaves what they write, of any age it is asked for.

A note is an object ``manifests/writing-JOB-LIFE-NONCE``. It covers every file whose name contains
``-JOB``, for LIFE seconds after it was written by the store's clock.

Contract:

1. A writer leaves a note before its first file, and renews it as long as it runs: it writes a new
   note, sees that the old one still exists, and removes the old one. A writer that finds its note
   gone does not commit. The note is removed after the commit, or after what was written is.
2. gc removes notes that are dead, then reads the notes that are left, then checks that the dataset
   has not changed since its plan, and only then removes files, without those that notes cover. So
   the files of a note that is gone belong to a version, or to nobody.
3. A task that cannot know how long its job runs leaves a note with a life of `TASK_LIFE_S`, which
   its job removes.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Self

from headrace.errors import CommitConflictError, HeadraceError
from headrace.storage.dataset.pointer import MANIFEST_FOLDER
from headrace.storage.store.store import ObjectEntry, Store

LIFE_S = 900
"""How long a note lasts that is not renewed. S3 refuses requests of clients whose clock is further
from its own, so gc's clock is not either."""

TASK_LIFE_S = 24 * 3600
"""Longer than most conversions run after one of their tasks has begun."""

_NOTE = re.compile(rf"{MANIFEST_FOLDER}/writing-([0-9a-f]{{8}})-(\d{{1,6}})-[0-9a-f]{{32}}")
_RENEW_S = 60.0
_JOIN_S = 60.0


def leave_note(store: Store, job: str, *, life_s: int = LIFE_S) -> str:
    """Write a note, and return its name.

    Args:
        store: The store of the dataset.
        job: Eight hexadecimal digits, which the names of all files of the job contain behind a
            hyphen.
        life_s: How long the note lasts.
    """
    name = f"{MANIFEST_FOLDER}/writing-{job}-{life_s}-{uuid.uuid4().hex}"
    store.write(name, b"")
    return name


def is_note(name: str) -> bool:
    """Return whether a name is that of a note."""
    return _NOTE.fullmatch(name) is not None


def dead_notes(entries: Iterable[ObjectEntry], *, now_s: float) -> list[ObjectEntry]:
    """Return the notes whose life is over."""
    found = ((entry, _NOTE.fullmatch(entry.name)) for entry in entries)
    return [entry for entry, note in found if note and entry.written_s + int(note[2]) <= now_s]


class LiveWrites:
    """What living writers may still commit.

    Args:
        notes: Names of their notes, and any other names.
    """

    def __init__(self, notes: Iterable[str]) -> None:
        found = map(_NOTE.fullmatch, notes)
        self._jobs: Collection[str] = {f"-{note[1]}" for note in found if note}

    def __contains__(self, name: str) -> bool:
        """Return whether a file belongs to one of them, as the note itself does."""
        return any(job in name for job in self._jobs)


class WriterNotes:
    """The notes of one job, renewed in a thread for as long as the context lasts.

    Args:
        job: See `leave_note`.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._notes: dict[str, tuple[Store, str]] = {}
        self._lost: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_renewing, name="headrace-writer-notes", daemon=True
        )

    def __enter__(self) -> Self:
        """Start to renew."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the notes, as far as the stores allow it."""
        self._ended.set()
        self._thread.join(_JOIN_S)
        for store, name in self._notes.values():
            with contextlib.suppress(HeadraceError):
                store.delete(name)

    def leave(self, store: Store) -> None:
        """Leave a note in a store, if this job has none there.

        Raises:
            HeadraceError: The note cannot be written.
        """
        with self._lock:
            if store.url not in self._notes:
                self._notes[store.url] = store, leave_note(store, self._job)

    def check(self) -> None:
        """Renew all notes; call this before a commit.

        Raises:
            CommitConflictError: `headrace gc` has taken a note for that of a dead writer.
            HeadraceError: A store failed.
        """
        with self._lock:
            for url, (store, name) in self._notes.items():
                self._notes[url] = store, leave_note(store, self._job)
                if store.entry(name) is None:
                    self._lost.add(url)
                store.delete(name)
        for url in self._lost:
            raise CommitConflictError(
                f"`headrace gc` has removed what was written to {url}, because this writer could "
                f"not renew its note in {MANIFEST_FOLDER}/ for {LIFE_S // 60} minutes; nothing was "
                "committed, write it again",
                url=url,
            )

    def _keep_renewing(self) -> None:
        while not self._ended.wait(_RENEW_S):
            # What failed is tried again at the next turn, and told before the commit.
            with contextlib.suppress(HeadraceError):
                self.check()
