"""The windows of the jobs that read a dataset or a mixture, where their cache is too small."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.caches import LruCache
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.needs import CacheNeed
from headrace.server.cache.readers import Blocks, WholeBlocks
from headrace.server.cache.source import Source
from headrace.server.cache.windowed_blocks import WindowedBlocks
from headrace.server.cache.windows import Windows
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.window_finder import WindowFinder

# The most jobs whose windows are kept; each has a table of at most 24 MiB for a few of them.
_MAX_JOBS = 16


class JobWindows:
    """The windows of jobs, shared by the streams of each; thread-safe.

    Attributes:
        windows: All of them.
        needs: What the jobs of the cache need.

    Args:
        cache: The cache.
        wholes: The datasets in the cache.
        first_blocks: ``(datasets + 1,) int64``: the number of each dataset's first block, and the
            end.
    """

    def __init__(
        self, cache: BlockCache, wholes: Sequence[Source], first_blocks: NDArray[np.int64]
    ) -> None:
        self.windows = Windows(cache, wholes, first_blocks)
        self.needs = cache.needs
        self._finders: LruCache[Hashable, WindowFinder] = LruCache(_MAX_JOBS)

    def finder(
        self, ordered: Finder, need: CacheNeed, *, lanes: int, together: int, batch: int
    ) -> WindowFinder:
        """Return a finder that reads windows, which its job shares.

        Args:
            ordered: Finds the samples.
            need: What a stream of the job needs of the cache. Others may read other lanes at other
                servers, so only the lanes of streams that are open here count beside its own.
            lanes: The number of lanes of the order: windows hold the samples of all.
            together: The number of positions that are shuffled together.
            batch: The number of positions of a global batch.
        """
        needs = self.needs
        whole = replace(need, lanes=range(lanes))
        return self._finders.get_once(
            (need.job, ordered),
            lambda: WindowFinder(
                ordered,
                self.windows,
                need=whole,
                part_bytes=lambda: needs.part_bytes(need.job),
                together=together,
                batch=batch,
            ),
        )

    def blocks(self, whole: WholeBlocks) -> Blocks:
        """Return blocks and the pieces of windows, for a stream that `finder` finds samples for."""
        return WindowedBlocks(whole, self.windows)
