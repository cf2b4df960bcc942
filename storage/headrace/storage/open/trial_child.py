"""The process in which datasets are opened on trial.

`python -m headrace.storage.open.trial_child DESCRIPTOR` receives a list of `Trial` over its
connection and answers each with one JSON text, in order. It ends when its parent does. It asks the
kernel to kill it first if memory runs short, and limits its own memory, so that a small file that
expands enormously harms no other process.
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
"""Arbitrary: room for the largest row group, 2 GiB, decoded and in parts, and some more."""

_SHARDS = 3  # first, middle and last: each may come from another writer
_OOM_SCORE = 1000  # the highest on Linux, so this process is killed first


def main(descriptor: int) -> None:
    """Answer the trials that arrive over a connection.

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
            # A damaged block is reported to the streams that read it.
            with contextlib.suppress(HeadraceError):
                dataset.read_block(block)


def _blocks(dataset: OpenDataset) -> list[int]:
    """Return the first blocks of the shards to try."""
    counts = dataset.shard_sample_counts
    filled = np.flatnonzero(counts)
    if not filled.size:
        return []
    chosen = np.unique(filled[np.linspace(0, filled.size - 1, _SHARDS).astype(np.int64)])
    firsts = np.concatenate([[0], np.cumsum(counts)])[chosen]
    return [int(block) for block in np.unique(dataset.locate(firsts)[0])]


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # the operator's limit may be lower
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
    with contextlib.suppress(OSError):  # a sandbox without /proc
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))


def _end_with(connection: Connection) -> None:
    """End when the parent is gone, because a third-party decoder may never return."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv_bytes()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
