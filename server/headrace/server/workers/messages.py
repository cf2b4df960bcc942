"""The messages between a supervisor and its workers.

They are sent as pickles over a private socket pair: both ends are the same program of the same
user. All messages are one-way; an answer is a separate message. Workers number their streams, and
the supervisor's cache numbers the datasets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Metric

from headrace.errors import HeadraceError
from headrace.server.cache.needs import CacheNeed
from headrace.server.cache.pieces import Pieces
from headrace.server.settings.config_layers import ConfigSource
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.server.settings.server_config import ServerConfig

Blocks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Start:
    """To a worker, first: its settings. Three descriptors follow: arena, header, worker table.

    Attributes:
        config: Its settings.
        source: Where the configuration is read again from.
        sizes: The sizes of arena, header and worker table in bytes.
    """

    config: ServerConfig
    source: ConfigSource | None
    sizes: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OpenSource:
    """To the supervisor: open a dataset in the cache; answered by `Opened`."""

    request: int
    name: str
    config: DatasetConfig
    fingerprint: str


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """To the supervisor: add pieces of datasets to the cache; answered by `Opened`.

    Attributes:
        request: The number of the request, which `CloseWindow` repeats.
        members: The number of each dataset, and its pieces.
    """

    request: int
    members: tuple[tuple[int, Pieces], ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """To a worker. A descriptor of tables follows, unless there is an error.

    Attributes:
        request: The number of the request.
        indices: The numbers of what is in the cache now: a dataset, or the pieces of several.
        size: The size of the tables in bytes.
        error: Why it could not be opened.
    """

    request: int
    indices: tuple[int, ...] = ()
    size: int = 0
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class CloseWindow:
    """To the supervisor: this worker no longer needs a window."""

    request: int


@dataclass(frozen=True, slots=True)
class NeedOpened:
    """To the supervisor: what a stream needs of the cache, until `NeedOver`."""

    number: int
    need: CacheNeed


@dataclass(frozen=True, slots=True)
class NeedOver:
    """To the supervisor: the stream needs nothing any more."""

    number: int


@dataclass(frozen=True, slots=True)
class NeedOfOther:
    """To a worker: what a stream of another worker needs; None when it has ended."""

    stream: tuple[int, int]
    need: CacheNeed | None


@dataclass(frozen=True, slots=True)
class CloseSource:
    """To the supervisor: this worker no longer needs a dataset."""

    index: int


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """To the supervisor: a stream of a job; answered by `JobNamed`."""

    stream: int
    job: str


@dataclass(frozen=True, slots=True)
class JobNamed:
    """To a worker: the job of a stream as workers' tables name it."""

    stream: int
    job: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """To the supervisor: the stream has ended; it holds and needs nothing."""

    stream: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """To the supervisor: fetch blocks ahead of need."""

    stream: int
    index: int
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class Demand:
    """To the supervisor: pin blocks for a stream and report each, missing ones as they arrive.

    Attributes:
        serial: The number of the demand in its stream, which answers repeat.
    """

    stream: int
    serial: int
    index: int
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class Release:
    """To the supervisor: blocks of a demand have been read."""

    stream: int
    index: int
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class EndDemand:
    """To the supervisor: the demand of a stream is over; its pins are released."""

    stream: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """To a worker: a block is pinned for a stream."""

    stream: int
    serial: int
    block: int


@dataclass(frozen=True, slots=True)
class Failed:
    """To a worker: a block that a stream waits for cannot be fetched."""

    stream: int
    serial: int
    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Ready:
    """To the supervisor: the worker listens."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CannotStart:
    """To the supervisor: the worker ends, as a server would."""

    error: HeadraceError


@dataclass(frozen=True, slots=True)
class Report:
    """To the supervisor, regularly: the number of streams, and metrics.

    Attributes:
        stream_count: The number of open streams of batches.
        metrics: The values of the worker's metrics.
        streams: The counts of each open stream, if there is a page.
    """

    stream_count: int
    metrics: Sequence[Metric]
    streams: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class EndStreams:
    """To a worker: end some streams, and refuse new ones for a moment."""

    count: int


@dataclass(frozen=True, slots=True)
class Reload:
    """To a worker: read the datasets of the configuration again."""


@dataclass(frozen=True, slots=True)
class Drain:
    """To a worker: end, as a server does at SIGTERM."""


ToSupervisor = (
    OpenSource
    | CloseSource
    | OpenWindow
    | CloseWindow
    | NeedOpened
    | NeedOver
    | StreamOpened
    | StreamClosed
    | Prefetch
    | Demand
    | Release
    | EndDemand
    | Ready
    | CannotStart
    | Report
)
ToWorker = Start | Opened | JobNamed | NeedOfOther | Arrived | Failed | EndStreams | Reload | Drain
