"""What a supervisor and its workers say to each other.

They talk over a socket pair that only they have, as pickles: both are one program of one user.
Everything is one way; an answer is a message of its own. Streams are named by numbers that their
worker gives out, datasets by the index that the supervisor's cache gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Metric

from headrace.errors import HeadraceError
from headrace.server.settings.config_layers import ConfigSource
from headrace.server.settings.dataset_config import DatasetConfig

Blocks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Start:
    """To a worker, first: what it needs. Three descriptors follow: arena, header, desk.

    Attributes:
        settings: The settings of its `ServerConfig`, by name.
        source: Where datasets that come and go are read from.
        sizes: Bytes of arena, header and desk.
    """

    settings: dict[str, object]
    source: ConfigSource | None
    sizes: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OpenSource:
    """To the supervisor: let a dataset into the cache; answered by `SourceOpened`."""

    request: int
    name: str
    config: DatasetConfig
    fingerprint: str


@dataclass(frozen=True, slots=True)
class SourceOpened:
    """To a worker. A descriptor of the dataset's tables follows, unless there is an error."""

    request: int
    index: int
    size: int
    error: HeadraceError | None


@dataclass(frozen=True, slots=True)
class CloseSource:
    """To the supervisor: this worker needs a dataset no more."""

    index: int


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """To the supervisor: a stream of a job; answered by `JobNamed`."""

    stream: int
    job: str


@dataclass(frozen=True, slots=True)
class JobNamed:
    """To a worker: the job of a stream as desks name it."""

    stream: int
    job: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """To the supervisor: it holds nothing any more, and needs nothing."""

    stream: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """To the supervisor: fetch blocks ahead of need."""

    stream: int
    index: int
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class Demand:
    """To the supervisor: pin blocks for a stream and say so, those that are not there as they come.

    Attributes:
        serial: Counts the demands of a stream; answers name it.
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
    """To the supervisor: the demand of a stream is over; what is pinned for it is free."""

    stream: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """To a worker: a block is pinned for a stream."""

    stream: int
    serial: int
    block: int


@dataclass(frozen=True, slots=True)
class Failed:
    """To a worker: a block that a stream waits for will not come."""

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
    """To the supervisor, every now and then: how many streams of batches there are, and metrics.

    Attributes:
        stream_count: Streams.
        metrics: What was counted.
        streams: What each open stream has counted, if there is a page.
    """

    stream_count: int
    metrics: Sequence[Metric]
    streams: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class SendAway:
    """To a worker: ask streams to reconnect, and those that come in the next moments too."""

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
ToWorker = Start | SourceOpened | JobNamed | Arrived | Failed | SendAway | Reload | Drain
