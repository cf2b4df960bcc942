"""Petastorm's reader of Parquet and of what a converter wrote: columns of a batch at a time."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.client import NumpyDataset
from headrace.compat.petastorm.transform import Arrays, TransformSpec

READ_ROWS = 1024
"""Rows at a time of a reader without a loader; theirs reads row groups."""
_VALID = ".valid"
_HONOURED = {
    *("cur_shard", "num_epochs", "schema_fields", "seed", "shard_count", "shuffle_row_groups"),
    *("shuffle_rows", "transform_spec"),
}
_REFUSED = {
    "predicate": "a condition on columns: headrace.client.Selection(url, where='label < 10')",
    "rowgroup_selector": "a condition on columns, as for predicate",
    "filters": "a condition on columns, as for predicate",
    "filesystem": "storage options in the environment, or a URL that headrace reads",
}
_NO_EFFECT = {
    *("cache_extra_settings", "cache_location", "cache_row_size_estimate", "cache_size_limit"),
    *("cache_type", "convert_early_to_numpy", "hdfs_driver", "reader_pool_type", "storage_options"),
    *("results_queue_size", "shard_seed", "shuffle_row_drop_partitions", "workers_count"),
    "zmq_copy_buffers",
}


class Reader:
    """Read a dataset in batches of columns; each value is a namedtuple of arrays.

    Numbers are arrays ``(samples, *shape)``, strings and bytes object arrays; a number that is null
    is NaN, anything else None.
    """

    batched_output = True
    is_batched_reader = True

    def __init__(
        self,
        make: Callable[..., NumpyDataset],
        *,
        num_epochs: int | None,
        cur_shard: int | None,
        shard_count: int | None,
        seed: int | None,
        shuffle: bool,
        transform_spec: TransformSpec | None,
    ) -> None:
        """Describe what to read; nothing is read before the first batch.

        Args:
            make: Makes the dataset to read, from arguments of `NumpyDataset`.
            num_epochs: Passes over the data; None for no end.
            cur_shard: Which of the shards this process reads; None, with ``shard_count``, for all.
            shard_count: How many processes share the data.
            seed: Seed of the order, the same on all processes; None for 0.
            shuffle: Whether the order is random.
            transform_spec: What to do with each batch.

        Raises:
            ValueError: Only one of ``cur_shard`` and ``shard_count`` is given.
        """
        if (cur_shard is None) != (shard_count is None):
            raise ValueError(
                f"cur_shard is {cur_shard} and shard_count is {shard_count}; expected both or none"
            )
        self._make = partial(
            make,
            rank=cur_shard or 0,
            world_size=shard_count or 1,
            seed=seed or 0,
            # Without an end, all batches are whole on all ranks; with one, no sample is left out.
            end="drop_last" if num_epochs is None else "uneven",
            transform=partial(_columns, transform_spec),
        )
        self.num_epochs = num_epochs
        self.shuffle = shuffle
        self.last_row_consumed = False
        self._dataset: NumpyDataset | None = None
        self._rows: Iterator[Any] | None = None

    def batches(self, batch_size: int, *, shuffle: bool = False) -> Iterator[Arrays]:
        """Yield the columns of all batches of all epochs.

        Args:
            batch_size: Samples of a batch. With ``num_epochs``, the last of an epoch may have less;
                without, what is left of an epoch is left out.
            shuffle: Shuffle even if the reader does not.

        Raises:
            HeadraceError: A batch cannot be read, or there is no end and a batch has more samples
                than there are.
        """
        self.stop()
        self._dataset = self._make(batch_size=batch_size, shuffle=shuffle or self.shuffle)
        with closing(self._dataset) as dataset:
            for _ in count() if self.num_epochs is None else range(self.num_epochs):
                yield from dataset

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next columns, as a namedtuple."""
        if self._rows is None:
            self._rows = map(_row, self.batches(READ_ROWS))
        try:
            return next(self._rows)
        except StopIteration:
            self.last_row_consumed = True
            raise

    def reset(self) -> None:
        """Let the next loop start with the first epoch again."""
        self.stop()
        self._rows, self.last_row_consumed = None, False

    def stop(self) -> None:
        """Close the stream; `reset` opens it again."""
        if self._dataset is not None:
            self._dataset.close()

    def join(self) -> None:
        """Do nothing: `stop` has waited."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def make_batch_reader(
    dataset_url_or_urls: str | Sequence[str],
    schema_fields: Sequence[str] | None = None,
    **settings: Any,
) -> Reader:
    """Read Parquet, or any other layout that headrace reads, in batches of columns.

    Args:
        dataset_url_or_urls: One URL, of a file or a folder.
        schema_fields: Names of columns; None for all.
        settings: ``num_epochs`` (1), ``cur_shard``, ``shard_count``, ``seed`` and
            ``transform_spec``, see `Reader`; ``shuffle_row_groups`` (True) or ``shuffle_rows``
            (False) to shuffle rows one by one. Pools, queues and caches of theirs have no effect.

    Raises:
        ValueError: A setting is not known, not supported, or out of range.
    """
    url = dataset_url_or_urls
    if not isinstance(url, str):
        urls = list(url)
        if len(urls) != 1:
            raise ValueError(f"got {len(urls)} URLs; expected one, of the folder that holds them")
        (url,) = urls
    return open_reader(partial(NumpyDataset, None, url), schema_fields=schema_fields, **settings)


def open_reader(make: Callable[..., NumpyDataset], **settings: Any) -> Reader:
    """Return a reader of what ``make`` makes; `make_batch_reader` has the settings.

    Raises:
        ValueError: As for `make_batch_reader`.
    """
    given = {"num_epochs": 1, "shuffle_row_groups": True, "shuffle_rows": False, **settings}
    for name in sorted(given.keys() - _HONOURED - _NO_EFFECT):
        if name not in _REFUSED:
            raise ValueError(
                f"{name} is no argument of Petastorm's reader; expected some of "
                f"{', '.join(sorted(_HONOURED))}"
            )
        if given[name] is not None:
            raise ValueError(f"{name} is given, which headrace has not; use {_REFUSED[name]}")
    return Reader(
        partial(make, columns=tuple(given.get("schema_fields") or ())),
        num_epochs=given["num_epochs"],
        cur_shard=given.get("cur_shard"),
        shard_count=given.get("shard_count"),
        seed=given.get("seed"),
        shuffle=given["shuffle_rows"] or given["shuffle_row_groups"],
        transform_spec=given.get("transform_spec"),
    )


def _columns(spec: TransformSpec | None, arrays: Arrays) -> Arrays:
    columns = {
        name: _with_nulls(values, arrays.get(name + _VALID))
        for name, values in arrays.items()
        if not (name.endswith(_VALID) and name.removesuffix(_VALID) in arrays)
    }
    return columns if spec is None else spec.apply(columns)


def _with_nulls(values: NDArray[Any], valid: NDArray[np.bool_] | None) -> NDArray[Any]:
    """Return a column as pandas holds it: numbers that are null are NaN."""
    if valid is None or valid.all() or values.dtype == object:
        return values
    if values.dtype.kind == "b":
        nullable = values.astype(object)
        nullable[~valid] = None
        return nullable
    floats = values if values.dtype.kind == "f" else values.astype(np.float64)
    return np.where(valid.reshape(-1, *[1] * (values.ndim - 1)), floats, np.nan).astype(
        floats.dtype, copy=False
    )


def _row(arrays: Arrays) -> Any:
    return namedtuple("inferred_schema_view", arrays)(**arrays)  # noqa: PYI024 - theirs
