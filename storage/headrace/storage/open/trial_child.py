"""The process in which datasets are opened on trial.

`python -m headrace.storage.open.trial_child DESCRIPTOR` takes a list of `Trial` from its connection
and answers each by one JSON text, in order. It ends with its parent. It asks the kernel to kill it
first if memory runs short, and limits its own memory, so that a small file that expands to a large
one harms no other process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from headrace.errors import ConfigurationError, HeadraceError
from headrace.storage.open.sources import open_dataset
from headrace.storage.open.trial import Trial
from headrace.storage.source.source import OpenDataset
from headrace.storage.store.safe_url import safe_url

MAX_BYTES = 8 << 30
"""Arbitrary: the largest row group that is read, 2 GiB, decoded and in parts, and room."""

_SHARDS = 3  # the first, one in the middle, and the last: each may be of another writer
_FIRST_TO_GO = 1000  # the greatest score that Linux knows


def main(descriptor: int) -> None:
    """Answer the trials that come over a connection.

    Args:
        descriptor: The descriptor of the connection.
    """
    _bound()
    connection = Connection(descriptor)
    trials: list[Trial] = connection.recv()
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    for trial in trials:
        connection.send_bytes(json.dumps(_answer(trial)).encode())


def _answer(trial: Trial) -> list[object] | None:
    try:
        _try(trial)
    except HeadraceError as error:
        return [type(error).__name__, error.message, dict(error.metadata)]
    except Exception as error:  # noqa: BLE001 - a foreign decoder may raise anything
        text = f"{safe_url(trial.url)} cannot be opened: {type(error).__name__}: {error}"
        return [ConfigurationError.__name__, text[:2000], {}]
    return None


def _try(trial: Trial) -> None:
    with open_dataset(
        trial.url,
        options=trial.store,
        fingerprint=trial.fingerprint,
        source_options=trial.source,
    ) as dataset:
        for block in _blocks(dataset):
            # Damage of one block is told to the streams that come to it.
            with contextlib.suppress(HeadraceError):
                dataset.read_block(block)


def _blocks(dataset: OpenDataset) -> list[int]:
    """Return the first block of some shards."""
    counts = dataset.shard_sample_counts
    filled = np.flatnonzero(counts)
    if not filled.size:
        return []
    chosen = np.unique(filled[np.linspace(0, filled.size - 1, _SHARDS).astype(np.int64)])
    firsts = np.concatenate([[0], np.cumsum(counts)])[chosen]
    return [int(block) for block in np.unique(dataset.locate(firsts)[0])]


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # an operator's own limit may be lower
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
    with contextlib.suppress(OSError):  # a sandbox without /proc
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_TO_GO))


def _end_with(connection: Connection) -> None:
    """End when the parent is gone; a third-party decoder may never return."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv_bytes()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
