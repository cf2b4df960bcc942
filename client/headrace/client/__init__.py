"""The thin client: batches of a headrace server, as a PyTorch dataset.

Importing this package does not import torch; touching `RemoteDataset` does. `NumpyDataset` gives
the same batches as arrays without torch, `tf_dataset` gives them to TensorFlow, and `BatchReader`
is what they are all made of.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headrace.client._access import Access, TlsConfig
from headrace.client._assembler import Allocate, BatchEvent, EpochEndEvent
from headrace.client._buffers import BufferPool
from headrace.client._call import fetch_dataset
from headrace.client._config import Deadlines, Hedge
from headrace.client._hops import HopSeconds
from headrace.client._layout import ColumnView
from headrace.client._mixture import Mixture, MixtureEntry, read_mixture
from headrace.client._numpy import NumpyDataset
from headrace.client._prefetch import Prefetcher
from headrace.client._reader import BatchReader, Place
from headrace.client._request import ReadOptions
from headrace.client._ring import RingFeeds
from headrace.client._steps import Cast, DecodeImage, Pack, Pad, Stack, Transform
from headrace.client._tensorflow import tf_dataset
from headrace.client._transport import Landing, RingOptions, Transport
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client._batch import Batch
    from headrace.client._columns import BytesColumn, RaggedColumn, StringColumn
    from headrace.client._dataset import RemoteDataset
    from headrace.client._live import ClientStats
    from headrace.client._loader import BatchLoader

__all__ = [
    "Access",
    "Allocate",
    "Batch",
    "BatchEvent",
    "BatchLoader",
    "BatchReader",
    "BufferPool",
    "BytesColumn",
    "Cast",
    "ClientStats",
    "ColumnView",
    "Deadlines",
    "DecodeImage",
    "EpochEndEvent",
    "HeadraceError",
    "Hedge",
    "HopSeconds",
    "Landing",
    "Mixture",
    "MixtureEntry",
    "NumpyDataset",
    "Pack",
    "Pad",
    "Place",
    "Prefetcher",
    "RaggedColumn",
    "ReadOptions",
    "RemoteDataset",
    "RingFeeds",
    "RingOptions",
    "Stack",
    "StringColumn",
    "TlsConfig",
    "Transform",
    "Transport",
    "fetch_dataset",
    "read_mixture",
    "tf_dataset",
]

_NEED_TORCH = {
    "Batch": "headrace.client._batch",
    "BatchLoader": "headrace.client._loader",
    "BytesColumn": "headrace.client._columns",
    "ClientStats": "headrace.client._live",
    "RaggedColumn": "headrace.client._columns",
    "RemoteDataset": "headrace.client._dataset",
    "StringColumn": "headrace.client._columns",
}


def __getattr__(name: str) -> object:
    """Load what needs torch when it is first touched (PEP 562)."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NEED_TORCH[name]), name)
