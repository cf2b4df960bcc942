"""MosaicML Streaming's dataset over headrace's servers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from math import ceil
from typing import Any, Literal

import numpy as np
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from headrace.client import (
    Batch,
    Mixture,
    MixtureEntry,
    Order,
    PrivateServer,
    RemoteDataset,
    Transport,
)
from headrace.compat.streaming.ask import Served, ask
from headrace.compat.streaming.epochs import Epochs
from headrace.compat.streaming.rows import samples_of
from headrace.compat.streaming.stored import Array, Sample, Stored, decoded
from headrace.compat.streaming.streams import NAMED, Stream, apply_weights, streams_registry
from headrace.compat.streaming.units import bytes_of, count_of
from headrace.order import decode_token

Batching = Literal["random", "stratified", "per_dataset"]
_BATCHINGS: Mapping[str, Batching] = {
    "random": "random",
    "stratified": "stratified",
    "per_stream": "per_dataset",
    "device_per_stream": "per_dataset",
}
_ALGORITHMS = ("py1e", "py1br", "py1b", "py1s", "py2s", "naive")
_LEAST_PREFETCH = 1 << 16
_CACHED_SHARDS = 4
"""Shards that a cache must hold, by MosaicML's rule."""


class StreamingDataset(Array, IterableDataset[Any]):
    """Samples of this rank, an epoch for each ``iter``, in headrace's order.

    The arguments are MosaicML's; docs/compat.md says which are honoured, which have another meaning
    and which are refused. A subclass may override ``__getitem__``, which is called with the id of
    each sample in turn.

    Attributes:
        num_samples: The samples of all streams.
        epoch_size: The samples of an epoch, over all ranks.
        streams: The streams, with ``proportion``, ``repeat`` and ``choose``.
    """

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Read what the streams hold; no server is started before the first sample.

        Args:
            streams: Several datasets, or one with an amount; instead of ``remote`` and ``local``.
            remote: URL of the dataset, or ``headrace://host:port/name`` for one on a server.
            local: Its folder, if there is no ``remote``.
            split: A folder in it.
            download_retry: Without effect; see `Stream`.
            download_timeout: Without effect.
            validate_hash: Without effect.
            keep_zip: Without effect.
            epoch_size: Samples per epoch, such as ``"10k"``.
            predownload: Samples that each worker reads ahead, by their mean size.
            cache_limit: Size of the private server's cache, such as ``"4gb"``.
            sampling_method: ``balanced``, or ``fixed`` for the same samples in every epoch.
            sampling_granularity: With ``fixed``, how many neighbours are chosen together.
            partition_algo: Without effect: samples do not belong to nodes.
            num_canonical_nodes: Without effect: the order does not depend on nodes.
            batch_size: Samples of a batch of this rank, as for the DataLoader.
            shuffle: Whether to shuffle.
            shuffle_algo: A name of MosaicML's; the algorithm is headrace's.
            shuffle_seed: Seed of the order.
            shuffle_block_size: How many samples are shuffled together; None for 2 GiB of them.
            batching_method: How batches are composed of streams.
            allow_unsafe_types: Whether to unpickle columns of pickles.
            replication: How many consecutive ranks get the same samples.
            stream_name: A class of `streams_registry` for the stream of ``remote`` and ``local``.
            stream_config: Its other arguments.

        Raises:
            ValueError: An argument is out of range, or not supported; or a column holds pickles.
            FileNotFoundError: There is no dataset at ``remote``.
            RuntimeError: There is none in ``local``, a stream is empty, or a server fails.
        """
        self._refuse(sampling_method, batching_method, shuffle_algo, partition_algo)
        if bool(streams) == bool(remote or local):
            raise ValueError("expected either `streams` or `remote`/`local`, but not both")
        _check_least(
            shuffle_seed=(shuffle_seed, 0),
            sampling_granularity=(sampling_granularity, 1),
            batch_size=(batch_size, 1),
            predownload=(predownload, 1),
            shuffle_block_size=(shuffle_block_size, 1),
            replication=(replication, 1),
        )
        self.predownload, self.cache_limit = predownload, cache_limit
        self.sampling_method, self.sampling_granularity = sampling_method, sampling_granularity
        self.partition_algo, self.num_canonical_nodes = partition_algo, num_canonical_nodes
        self.batch_size, self.shuffle, self.shuffle_seed = batch_size, shuffle, shuffle_seed
        self.shuffle_algo, self.shuffle_block_size = shuffle_algo, shuffle_block_size
        self.batching_method, self.allow_unsafe_types = batching_method, allow_unsafe_types
        self.replication = replication
        self._rank, self._world_size = _ranks()
        self._groups, rest = divmod(self._world_size, replication or 1)
        if rest:
            raise ValueError(
                f"replication is {replication}; expected a divisor of the {self._world_size} ranks"
            )
        usual = streams_registry.get(stream_name)(
            **(stream_config or {}),
            remote=remote,
            local=local,
            split=split,
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
        )
        self.streams = list(streams or [usual])
        for stream in self.streams:
            stream.split = stream.split or split or ""
        self._measure(None if epoch_size is None else count_of(epoch_size))
        self._epochs = Epochs()
        self._held: tuple[int, Sample] | None = None
        self._unit = self._usual_unit()
        self._remote = None if self._is_sequential or batch_size is None else self._described()

    @staticmethod
    def _refuse(sampling: str, batching: str, algorithm: str, partition: str) -> None:
        for title, found, wanted in (
            ("sampling method", sampling, ("balanced", "fixed")),
            ("batching method", batching, tuple(_BATCHINGS)),
            ("shuffle algorithm", algorithm, _ALGORITHMS),
            ("partition algorithm", partition, ("relaxed", "orig")),
        ):
            if found not in wanted:
                raise ValueError(
                    f"Invalid {title}: {found}. Must be one of {', '.join(map(repr, wanted))}."
                )

    def _measure(self, epoch_size: int | None) -> None:
        self._stored = [self._found(stream) for stream in self.streams]
        counts = [found.sample_count for found in self._stored]
        self.num_streams, self.num_samples = len(counts), sum(counts)
        self.samples_per_stream = np.array(counts, np.int64)
        self.sample_offset_per_stream = np.cumsum([0, *counts[:-1]], dtype=np.int64)
        total = apply_weights(self.streams, counts, epoch_size)
        if _BATCHINGS[self.batching_method] == "per_dataset" and self._is_mixed and self.batch_size:
            unit = self._usual_unit() or 1
            total = sum(stream.choose // unit * unit for stream in self.streams)
        self.epoch_size = total
        self.length = ceil(total / self._groups)
        self._check_cache()
        if self.predownload is not None and self.predownload < (self.batch_size or 0):
            warnings.warn(
                f"predownload < batch_size ({self.predownload} < {self.batch_size}). This may "
                "result in slower batch time. Recommendation is to set predownload to at least "
                "batch_size.",
                stacklevel=4,
            )

    def _found(self, stream: Stream) -> Stored | Served:
        if stream.is_named:
            target, _, name = stream.url.removeprefix(NAMED).rpartition("/")
            if not target or not name:
                raise ValueError(f"remote is {stream.url!r}; expected headrace://host:port/name")
            return ask(target, name)
        return Stored(
            stream.url,
            has_remote=bool(stream.remote),
            allow_unsafe_types=self.allow_unsafe_types,
        )

    def _check_cache(self) -> None:
        if self.cache_limit is None:
            return
        self.cache_limit = bytes_of(self.cache_limit)
        largest = least = 0
        for found in self._stored:
            if isinstance(found, Served):
                raise ValueError(  # noqa: TRY004 - the argument is wrong, not a type
                    f"cache_limit is {self.cache_limit}, but a running server has its own; "
                    "expected none here, and `headrace serve --cache-bytes` there"
                )
            largest = max(largest, int(found.shard_bytes.max()))
            least += found.index_bytes()
        if self.cache_limit <= least:
            raise ValueError(
                f"Minimum cache usage ({least} bytes of index.json) is larger than the cache limit "
                f"({self.cache_limit} bytes). Please raise `cache_limit`."
            )
        if self.cache_limit < _CACHED_SHARDS * largest:
            raise ValueError(
                f"Cache limit ({self.cache_limit} bytes) is too low. Increase the `cache_limit` to "
                f"at least {_CACHED_SHARDS} times the largest shard ({largest} bytes)."
            )

    @property
    def _is_mixed(self) -> bool:
        """Whether an epoch is more, less or other than each sample of one dataset once."""
        (first, *others), (count, *_) = self.streams, self.samples_per_stream
        return bool(others) or first.choose != count

    @property
    def _is_sequential(self) -> bool:
        """Whether the streams are read one after the other, in storage order."""
        plain = not self.shuffle and self.batching_method == "random" and self._is_mixed
        return plain and self.sampling_method == "balanced"

    @property
    def global_batch_size(self) -> int:
        """The samples of a batch over all ranks.

        Raises:
            ValueError: There is no ``batch_size``.
        """
        if self.batch_size is None:
            raise ValueError(
                "Please pass `batch_size` to StreamingDataset, the same as to the DataLoader: it "
                "decides which samples come together"
            )
        return self.batch_size * self._groups

    def _usual_unit(self) -> int | None:
        if self.batching_method == "random" or self.batch_size is None:
            return None
        return self.global_batch_size if self.batching_method == "per_stream" else self.batch_size

    def _described(self) -> RemoteDataset:
        """Return the dataset that the samples come from; nothing is started."""
        targets = {each.url.removeprefix(NAMED).rpartition("/")[0] for each in self.streams}
        is_named = [stream.is_named for stream in self.streams]
        if any(is_named) and (not all(is_named) or len(targets) > 1):
            raise ValueError(
                f"streams are {[stream.url for stream in self.streams]}; expected all of them on "
                "one running server, or none"
            )
        names = [
            each.url.rpartition("/")[2] if all(is_named) else each.url for each in self.streams
        ]
        mean = sum(_raw_bytes(found) for found in self._stored) // self.num_samples + 1
        transport = Transport(
            private=PrivateServer(
                cache_bytes=None if not self.cache_limit else int(self.cache_limit)
            )
        )
        if self.predownload is not None:
            ahead = max(_LEAST_PREFETCH, self.predownload * mean)
            transport = Transport(private=transport.private, prefetch_bytes=ahead)
        return RemoteDataset(
            targets.pop() if all(is_named) else None,
            self._mixture(names) if self._is_mixed else names[0],
            batch_size=self.batch_size,
            seed=self.shuffle_seed,
            shuffle=self.shuffle,
            end="uneven",
            rank=self._rank // (self.replication or 1),
            world_size=self._groups,
            order=Order(
                with_ids=True, unit=self._unit, shuffle_samples=self.shuffle_block_size or 0
            ),
            transport=transport,
        )

    def _mixture(self, names: Sequence[str]) -> Mixture:
        is_fixed = self.sampling_method == "fixed"
        return Mixture(
            tuple(
                MixtureEntry(
                    name,
                    choose=stream.choose,
                    choice="fixed" if is_fixed else "fresh",
                    granularity=self.sampling_granularity if is_fixed else 1,
                    fingerprint=found.fingerprint,
                )
                for name, stream, found in zip(names, self.streams, self._stored, strict=True)
            ),
            batching=_BATCHINGS[self.batching_method],
        )

    @property
    def size(self) -> int:
        return self.num_samples

    def __len__(self) -> int:
        """Return the samples that an epoch has for this rank."""
        return self.length

    @property
    def next_epoch(self) -> int:
        """The epoch that the next ``iter`` reads."""
        return self._epochs.next[0]

    @property
    def next_place(self) -> tuple[int, int]:
        """The epoch and its samples before the place where the next ``iter`` starts."""
        return self._epochs.next

    def get_item(self, sample_id: int) -> Sample:
        """Return a sample by its number over all streams; from the batch, if it is its turn.

        Raises:
            ValueError: The dataset is on a running server, which gives no single samples.
        """
        if self._held is not None and self._held[0] == sample_id:
            return dict(self._held[1])
        at = int(np.searchsorted(self.sample_offset_per_stream, sample_id, side="right")) - 1
        found = self._stored[at]
        if isinstance(found, Served):
            raise ValueError(  # noqa: TRY004 - the dataset is wrong for this, not a type
                f"sample {sample_id} was asked for, but {self.streams[at].url} gives no single "
                "samples; expected a dataset by its URL, or only the id that __getitem__ was "
                "called with"
            )
        return found.sample(sample_id - int(self.sample_offset_per_stream[at]))

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of the next epoch, or of what a loaded state has left of one.

        Raises:
            ValueError: There is no ``batch_size``, or it does not fit the streams.
            HeadraceError: No further sample can be read.
        """
        self._check_batches()
        worker = get_worker_info()
        epoch, position = self._epochs.take()
        self._check_rest(position, 1 if worker is None else worker.num_workers)
        if self._remote is None:
            parts = self._in_sequence(epoch, position)
        else:
            parts = self._from_server(self._remote, epoch, position)
        item: Any = None
        for rows, missing in parts:
            for number, sample in rows:
                self._held = (number, sample)
                item = self[number]
                yield item
            self._held = None
            if missing:
                yield item

    def _from_server(
        self, remote: RemoteDataset, epoch: int, position: int
    ) -> Iterator[tuple[Iterator[tuple[int, Sample]], bool]]:
        if get_worker_info() is None:
            # The workers of a later loop must not learn of this place.
            remote = copy(remote)
        # Without a shuffle, epochs that draw all samples are equal.
        remote.seek(epoch if self._epochs_differ else 0, position)
        try:
            is_checked = False
            for batch in remote:
                if not is_checked:
                    self._check_version(batch)
                    is_checked = True
                yield (
                    self._rows(batch),
                    batch.sample_count < ceil(batch.global_sample_count / self._groups),
                )
        finally:
            remote.close()

    @property
    def _epochs_differ(self) -> bool:
        draws = np.array([stream.choose for stream in self.streams])
        rest = draws % self.samples_per_stream
        if self.sampling_method == "fixed" and np.any(
            (draws > self.samples_per_stream) & (rest > 0)
        ):
            # A fixed choice is one of fewer samples; what is drawn beyond all goes on by epochs.
            return False
        return self.shuffle or bool(np.any(rest))

    def _rows(self, batch: Batch) -> Iterator[tuple[int, Sample]]:
        assert batch.sample_ids is not None
        ids = batch.sample_ids.tolist()
        for at, sample in enumerate(samples_of(batch)):
            stream, number = ids[at] if self._is_mixed else (0, ids[at])
            found = self._stored[stream]
            if isinstance(found, Stored):
                sample = decoded(sample, found.encodings)  # noqa: PLW2901
            yield int(self.sample_offset_per_stream[stream]) + number, sample

    def _check_version(self, batch: Batch) -> None:
        found = decode_token(batch.token).fingerprint
        if not self._is_mixed and found != self._stored[0].fingerprint:
            raise RuntimeError(
                f"{self.streams[0].url} has changed: version {found} is served, and "
                f"{self._stored[0].fingerprint} was found when the dataset was made; make it again"
            )

    def _in_sequence(
        self, epoch: int, position: int
    ) -> Iterator[tuple[Iterator[tuple[int, Sample]], bool]]:
        """Yield this worker's batches: each stream's draws go on where its last epoch ended."""
        worker = get_worker_info()
        index, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        group = self._rank // (self.replication or 1)
        step = self.global_batch_size
        for start in range(position + index * step, self.epoch_size, count * step):
            total = min(step, self.epoch_size - start)
            low, high = group * total // self._groups, (group + 1) * total // self._groups
            places = range(start + low, start + high)
            yield self._drawn(epoch, places), high - low < ceil(total / self._groups)

    def _drawn(self, epoch: int, places: range) -> Iterator[tuple[int, Sample]]:
        edges = np.cumsum([stream.choose for stream in self.streams])
        for place in places:
            at = int(np.searchsorted(edges, place, side="right"))
            draws, found = self.streams[at].choose, self._stored[at]
            if isinstance(found, Served):
                raise ValueError(  # noqa: TRY004 - the dataset is wrong for this, not a type
                    "shuffle is False, and streams of a running server cannot be read one after "
                    "the other; expected shuffle=True, batching_method='stratified', or their URLs"
                )
            number = (epoch * draws + place - int(edges[at]) + draws) % found.sample_count
            yield int(self.sample_offset_per_stream[at]) + number, found.sample(number)

    def _check_batches(self) -> None:
        batch_size = self.global_batch_size // self._groups
        if dist.is_available() and dist.is_initialized() and _ranks()[1] != self._world_size:
            raise ValueError(
                f"the dataset was made for {self._world_size} ranks, but there are {_ranks()[1]} "
                "now; make it after torch.distributed.init_process_group"
            )
        for number, stream in enumerate(self.streams):
            if self.batching_method == "stratified" and not round(batch_size * stream.proportion):
                raise ValueError(
                    f"Number of samples for stream {number} is 0 in a batch of {batch_size}, as "
                    f"its proportion is {stream.proportion:.4g}; expected a larger batch or stream"
                )
        blocks = [found.shard_samples.max() for found in self._stored if isinstance(found, Stored)]
        if self.shuffle and (self.shuffle_block_size or max(blocks, default=0)) < max(
            blocks, default=0
        ):
            warnings.warn(
                f"Shuffle block size was smaller than shard size ({self.shuffle_block_size} < "
                f"{max(blocks)} samples): samples of one shard come together, and it is read often",
                stacklevel=3,
            )

    def _check_rest(self, position: int, workers: int) -> None:
        """Refuse, on all ranks alike, a last batch that a rank could not even repeat for."""
        batches, rest = divmod(self.epoch_size - position, self.global_batch_size)
        if 0 < rest < self._groups and batches + 1 <= workers:
            raise ValueError(
                f"the last {rest} samples of the epoch are fewer than the {self._groups} ranks, "
                f"and {batches} batches before them fewer than the {workers} workers; expected "
                "fewer workers, or another epoch_size"
            )

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:  # noqa: FBT001 - theirs
        """Return the state after some samples of the last epoch that was begun.

        Args:
            num_samples: Samples of all ranks, whole batches.
            from_beginning: Whether they count from the start of the epoch, and not from where a
                loaded state made it start.

        Raises:
            ValueError: They are no whole batches.
        """
        taken = self._epochs.taken
        if taken is None:
            return self.state_at(*self._epochs.next)
        epoch, start = taken
        return self.state_at(epoch, num_samples if from_beginning else start + num_samples)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """Return the state of a place; JSON-serialisable, and the same on all ranks.

        Raises:
            ValueError: The position is inside a batch.
        """
        if position >= self.epoch_size:
            epoch, position = epoch + 1, 0
        if position % self.global_batch_size:
            raise ValueError(
                f"{position} samples are no whole number of batches of {self.global_batch_size} "
                "samples over all ranks"
            )
        return {"epoch": epoch, "sample_in_epoch": position, **self._order_facts()}

    def _order_facts(self) -> dict[str, Any]:
        """Return all that the order depends on."""
        return {
            "headrace": 1,
            "global_batch_size": self.global_batch_size,
            "unit": self._unit,
            "shuffle": self.shuffle,
            "shuffle_seed": self.shuffle_seed,
            "shuffle_block_size": self.shuffle_block_size,
            "batching_method": self.batching_method,
            "sampling_method": self.sampling_method,
            "sampling_granularity": self.sampling_granularity,
            "streams": [
                {"fingerprint": found.fingerprint, "choose": int(stream.choose)}
                for found, stream in zip(self._stored, self.streams, strict=True)
            ],
        }

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Let the next ``iter`` go on after a state, on any number of ranks and workers.

        Raises:
            ValueError: It is a state of MosaicML's, or of another order.
        """
        if obj.get("headrace") != 1:
            raise ValueError(
                f"the state has {sorted(obj)}, and is not of headrace.compat.streaming; a state of "
                "MosaicML Streaming counts samples in another order, so it cannot be gone on from"
            )
        unit = obj.get("unit")
        for name, here in self._order_facts().items():
            if name != "unit" and obj.get(name) != here:
                raise ValueError(
                    f"the state was saved with {name} {obj.get(name)}, but here it is {here}; "
                    "expected the same, as its place is one in another order"
                )
        epoch, position = int(obj["epoch"]), int(obj["sample_in_epoch"])
        if epoch < 0 or not 0 <= position < self.epoch_size or position % self.global_batch_size:
            raise ValueError(f"the state's place is damaged: epoch {epoch}, sample {position}")
        if unit != self._unit:
            self._unit = unit
            self._remote = None if self._is_sequential else self._described()
        self._epochs.move(epoch, position)


def _raw_bytes(found: Stored | Served) -> int:
    return found.raw_bytes if isinstance(found, Served) else int(found.shard_bytes.sum())


def _check_least(**given: tuple[int | None, int]) -> None:
    for name, (value, least) in given.items():
        if value is not None and value < least:
            raise ValueError(f"`{name}` is {value}; expected at least {least}")


def _ranks() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
