"""The thin client: batches of a headrace server, as a PyTorch dataset.

Importing this package does not import torch; touching `RemoteDataset` does. `NumpyDataset` gives
the same batches as arrays without torch, `tf_dataset` gives them to TensorFlow, and `BatchReader`
is what they are all made of.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headrace.client.api.numpy_dataset import NumpyDataset
from headrace.client.api.stats import ClientStats
from headrace.client.api.stats_log import StatsLog
from headrace.client.api.tensorflow_dataset import tf_dataset
from headrace.client.feeds.blame import Culprit, blamed
from headrace.client.feeds.shortage import CacheShortage
from headrace.client.feeds.transport import Feeds, Landing, TransportState
from headrace.client.feeds.wait_times import HopSeconds
from headrace.client.options.access import Access, TlsConfig
from headrace.client.options.deal import Deal
from headrace.client.options.mesh import Mesh
from headrace.client.options.mixture import Mixture, MixtureEntry, read_mixture
from headrace.client.options.order import LengthBuckets, Order
from headrace.client.options.private import Fallback, PrivateServer
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.selection import Selection
from headrace.client.options.settings import Deadlines, Hedge
from headrace.client.options.sharding import Sharding
from headrace.client.options.stage import OrderStage, Stage
from headrace.client.options.transport import Transport
from headrace.client.options.where import Where
from headrace.client.reader.prefetch import Prefetcher
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.servers.unary import fetch_dataset
from headrace.client.stages.columns import Cast, Pad, Stack
from headrace.client.stages.image_transforms import (
    Boxes,
    CenterCrop,
    ColorJitter,
    Normalize,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from headrace.client.stages.images import DecodeImage
from headrace.client.stages.mixing import CutMix, MixUp, OneHot
from headrace.client.stages.slices import Slice
from headrace.client.stages.texts import Tokenize
from headrace.client.stages.transforms import Transform
from headrace.client.transports.lane.options import Lane
from headrace.client.transports.ring.options import Ring
from headrace.client.wire.assembler import Allocate, BatchEvent, EpochEndEvent
from headrace.client.wire.buffers import BufferPool
from headrace.client.wire.payload_layout import ColumnView
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.api.batch_loader import BatchLoader
    from headrace.client.api.dataset import RemoteDataset
    from headrace.client.batch.batch import Batch
    from headrace.client.batch.columns import BytesColumn, RaggedColumn, StringColumn
    from headrace.client.batch.varlen import cu_seqlens

__all__ = [
    "Access",
    "Allocate",
    "Batch",
    "BatchEvent",
    "BatchLoader",
    "BatchReader",
    "Boxes",
    "BufferPool",
    "BytesColumn",
    "CacheShortage",
    "Cast",
    "CenterCrop",
    "ClientStats",
    "ColorJitter",
    "ColumnView",
    "Culprit",
    "CutMix",
    "Deadlines",
    "Deal",
    "DecodeImage",
    "EpochEndEvent",
    "Fallback",
    "Feeds",
    "HeadraceError",
    "Hedge",
    "HopSeconds",
    "Landing",
    "Lane",
    "LengthBuckets",
    "Mesh",
    "MixUp",
    "Mixture",
    "MixtureEntry",
    "Normalize",
    "NumpyDataset",
    "OneHot",
    "Order",
    "OrderStage",
    "Pad",
    "Place",
    "Prefetcher",
    "PrivateServer",
    "RaggedColumn",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "ReadOptions",
    "RemoteDataset",
    "Resize",
    "Ring",
    "Selection",
    "Sharding",
    "Slice",
    "Stack",
    "Stage",
    "StatsLog",
    "StringColumn",
    "TlsConfig",
    "Tokenize",
    "Transform",
    "Transport",
    "TransportState",
    "Where",
    "blamed",
    "cu_seqlens",
    "fetch_dataset",
    "read_mixture",
    "tf_dataset",
]

_NEED_TORCH = {
    "Batch": "headrace.client.batch.batch",
    "BatchLoader": "headrace.client.api.batch_loader",
    "BytesColumn": "headrace.client.batch.columns",
    "RaggedColumn": "headrace.client.batch.columns",
    "RemoteDataset": "headrace.client.api.dataset",
    "StringColumn": "headrace.client.batch.columns",
    "cu_seqlens": "headrace.client.batch.varlen",
}


def __getattr__(name: str) -> object:
    """Load what needs torch when it is first touched (PEP 562)."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_NEED_TORCH[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ModuleNotFoundError(
            f"{name} needs torch, which is not installed here: pip install 'headrace[torch]', or "
            "the build of torch that you want; NumpyDataset works without torch",
            name="torch",
        ) from error
