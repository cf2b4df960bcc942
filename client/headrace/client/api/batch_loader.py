"""A DataLoader for those who want worker processes and exact checkpoints."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from multiprocessing import forkserver, util
from typing import Literal, Self, cast

from torch.utils.data import DataLoader

from headrace.arguments import flag, instance, one_of, whole, whole_or_none
from headrace.client.api.dataset import RemoteDataset
from headrace.client.api.epoch_loops import overtaken
from headrace.client.batch.batch import Batch
from headrace.client.batch.results import Result, WorkerResult
from headrace.client.loader.travels import check_travels
from headrace.client.loader.worker_plan import MOST_WORKERS
from headrace.client.loader.worker_share import expect_opened
from headrace.client.options.mesh import AnyMesh
from headrace.client.servers.runtime_folder import MOST_SOCKET_BYTES
from headrace.client.state.state import State
from headrace.errors import BadArgumentError, ConfigurationError


class BatchLoader(DataLoader[Result]):
    """Read a RemoteDataset in worker processes, in the same order as without workers.

    Each ``for`` yields the rest of the current epoch, as the dataset itself does. The state
    describes the last batch handed over, whatever the workers have read ahead. Any number of
    workers and ranks can load it, as can a dataset without a loader.

    As a context manager, it ends the workers and closes the dataset's connection on leaving.

    Examples:
        >>> dataset = RemoteDataset(address, "numbers", batch_size=5, shuffle=False, epochs=1)
        >>> with BatchLoader(dataset, num_workers=0) as loader:
        ...     [batch["x"].sum().item() for batch in loader]
        [10, 35]
    """

    def __init__(
        self,
        dataset: RemoteDataset[Result],
        *,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        start_method: Literal["fork", "spawn", "forkserver"] = "forkserver",
    ) -> None:
        """Prepare to read; workers start with the first ``for``.

        The process that they are forked from starts now and imports torch in parallel with the
        job, so that the first ``for`` need not wait for it.

        Args:
            dataset: What to read; each worker prefetches up to its ``prefetch_bytes``.
            num_workers: Worker processes, >= 0; with 0 the dataset itself reads.
            prefetch_factor: Batches that each worker prepares ahead, >= 1; None for torch's 2.
            persistent_workers: Keep the workers, and their streams, from epoch to epoch.
            pin_memory: Copy batches to pinned memory, in a thread of torch.
            start_method: How workers start. The default forks them from a clean process, so the
                threads and connections of this process do no harm; like ``spawn``, it requires
                a script to start its work under ``if __name__ == "__main__"``. The dataset
                refuses ``fork`` once this process has called a server.

        Raises:
            BadArgumentError: An argument has the wrong type, or is out of range.
            ConfigurationError: The path of the folder for temporary files is too long for sockets.
        """
        wanted = "a RemoteDataset; other datasets are for torch's own DataLoader"
        instance("dataset", dataset, RemoteDataset, wanted=wanted)
        num_workers = whole("num_workers", num_workers, low=0, high=MOST_WORKERS + 1)
        prefetch_factor = whole_or_none("prefetch_factor", prefetch_factor, low=1)
        flag("pin_memory", pin_memory)
        one_of("start_method", start_method, ("fork", "spawn", "forkserver"))
        if flag("persistent_workers", persistent_workers) and not num_workers:
            raise BadArgumentError(
                "persistent_workers=True with num_workers=0; expected workers, or leave the "
                "option out",
                field="persistent_workers",
            )
        if prefetch_factor is not None and not num_workers:
            raise BadArgumentError(
                f"prefetch_factor={prefetch_factor} with num_workers=0; expected workers, or the "
                "dataset's prefetch_bytes",
                field="prefetch_factor",
            )
        if num_workers:
            _check_sockets()
        if num_workers and start_method != "fork":
            check_travels(dataset.transform)
        if num_workers and start_method == "forkserver":
            # Loaded once, in the process that workers are forked from.
            multiprocessing.set_forkserver_preload([RemoteDataset.__module__])
            forkserver.ensure_running()
        is_plain = dataset.transform is None
        super().__init__(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory=pin_memory,
            multiprocessing_context=start_method if num_workers else None,
            worker_init_fn=None if is_plain else expect_opened,
            # Torch's own function would turn arrays that a function returns into tensors.
            collate_fn=None if is_plain else _as_it_is,
        )
        self._remote = dataset
        # Makes Accelerate leave this loader alone; `refuse_prepared` says why.
        self._is_accelerate_prepared = True

    def __iter__(self) -> Iterator[Result]:  # type: ignore[override] # torch says its private class
        """Yield the batches that the current epoch has left.

        Raises:
            BadArgumentError: Another loop has started since.
        """
        if self.num_workers:
            self._remote.leave_epoch()
            yield from self._remote.announced(self._taken())
        else:
            # The dataset does the same itself.
            yield from self._taken()

    def _taken(self) -> Iterator[Result]:
        loop = self._loop = object()
        for batch in cast("Iterator[object]", super().__iter__()):
            if isinstance(batch, Batch):
                # Access marks the batch as taken, even if the loop never looks at it.
                len(batch)
            yield cast("Result", batch.opened() if isinstance(batch, WorkerResult) else batch)
            if self._loop is not loop:
                raise overtaken()

    def reshard(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: AnyMesh | None = None,
        at_step: int | None = None,
    ) -> None:
        """Read another rank's share from a step on; see `RemoteDataset.reshard`.

        With workers, call it between two loops: they end, and the next ``for`` starts others. A
        loop that is left over gets an error.
        """
        self._remote.reshard(rank=rank, world_size=world_size, mesh=mesh, at_step=at_step)
        # Kept workers would read the share of the old rank.
        self._iterator = None

    def committed(self, step: int) -> None:
        """Note that the optimizer has taken a step; see `RemoteDataset.committed`."""
        self._remote.committed(step)

    def state_dict(self) -> State:
        """Return the dataset's state after the last batch handed over."""
        return self._remote.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue after that batch with the next ``for``; see `RemoteDataset.load_state_dict`."""
        self._remote.load_state_dict(state)
        # Kept workers would not learn what the state says beside its token.
        self._iterator = None

    def close(self) -> None:
        """End kept workers and drop the dataset's connection; the next ``for`` still continues."""
        # Torch ends the workers of its iterator as soon as nothing refers to the iterator.
        self._iterator = None
        self._remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _as_it_is(result: object) -> object:
    return result


def _check_sockets() -> None:
    """Refuse workers whose sockets cannot be made: with some start methods they wait for ever."""
    folder = util.get_temp_dir()
    longest = MOST_SOCKET_BYTES - len("/listener-01234567")
    if len(os.fsencode(folder)) > longest:
        raise ConfigurationError(
            f"multiprocessing makes the sockets of workers in {folder!r}, whose path has more than "
            f"{longest} bytes; set TMPDIR to a folder with a shorter path, such as /tmp, or read "
            "without workers"
        )
