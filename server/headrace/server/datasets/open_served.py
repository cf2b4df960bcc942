"""Open the datasets that a server serves, as their settings say."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.read_observer import ReadObserver
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.datasets.versions import Retirement, Versions
from headrace.server.plan.skip_lists import read_skip_lists
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.storage import OpenDataset, list_versions, open_dataset


def open_served(
    name: str,
    config: DatasetConfig,
    *,
    cache: BlockCache,
    max_batch_bytes: int,
    observers: Sequence[ReadObserver] = (),
) -> ServedDataset:
    """Open one dataset.

    Args:
        name: The name to serve it under.
        config: Where it is, and how to read it.
        cache: The cache for its blocks.
        max_batch_bytes: The largest payload of one batch.
        observers: Receive reports of each read.

    Raises:
        HeadraceError: It cannot be opened; see `headrace.storage.open_dataset`.
    """
    retirement = Retirement(name)
    skip_lists = read_skip_lists(config.skips)

    def open_version(fingerprint: str | None) -> ServedDataset:
        with ExitStack() as opened:
            dataset = open_one(config, fingerprint)
            opened.callback(dataset.close)
            served = ServedDataset(
                name,
                dataset,
                cache=cache,
                max_batch_bytes=max_batch_bytes,
                retirement=retirement,
                skip_lists=skip_lists,
                observers=observers,
                config=config,
            )
            opened.pop_all()
        return served

    served = open_version(None)
    current = (served.dataset.fingerprint, served)
    url, _ = config.place
    served.versions = Versions(
        name,
        current,
        open_version=open_version,
        list_versions=lambda: [
            each.fingerprint for each in list_versions(url, options=config.store)
        ],
    )
    return served


def open_one(config: DatasetConfig, fingerprint: str | None = None) -> OpenDataset:
    """Open a dataset according to its settings, in their version or another one.

    Raises:
        HeadraceError: See `headrace.storage.open_dataset`.
    """
    url, pinned = config.place
    return open_dataset(
        url, options=config.store, fingerprint=fingerprint or pinned, source_options=config.source
    )
