"""Petastorm's converter of Spark DataFrames, by headrace's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.client import NumpyDataset
from headrace.compat.petastorm.reader import Reader, open_reader
from headrace.storage import open_dataset

if TYPE_CHECKING:
    import tensorflow as tf
    from pyspark.sql import DataFrame

    from headrace.compat.petastorm.pytorch import DataLoader
    from headrace.converter import Conversion

_CODECS = {
    "uncompressed": "none",
    "lz4": "lz4",
    **dict.fromkeys(("bzip2", "gzip", "snappy", "deflate"), "zstd"),
}
_OTHER_FLOAT = {"float32": "double", "float64": "float"}
"""Spark's name of the type that a dtype replaces."""
_BATCH_SIZE = 32


class SparkDatasetConverter:
    """A converted DataFrame. Picklable and small; ``len()`` is its number of samples.

    Attributes:
        cache_dir_url: The URL of the dataset, in headrace's format.
        dataset_size: Its number of samples.
    """

    PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"

    def __init__(
        self, cache_dir_url: str, dataset_size: int, conversion: Conversion | None
    ) -> None:
        """Hold what was converted; `make_spark_converter` makes one.

        Args:
            cache_dir_url: The URL of the dataset.
            dataset_size: Its number of samples.
            conversion: The conversion; None if the dataset was there before.
        """
        self.cache_dir_url = cache_dir_url
        self.dataset_size = dataset_size
        self._conversion = conversion

    def __len__(self) -> int:
        return self.dataset_size

    def make_torch_dataloader(
        self,
        batch_size: int = _BATCH_SIZE,
        num_epochs: int | None = None,
        workers_count: int | None = None,  # noqa: ARG002 - theirs
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> AbstractContextManager[DataLoader]:
        """Return a context in which a loader yields batches of tensors.

        Args:
            batch_size: Samples of a batch.
            num_epochs: Passes over the data; None for no end.
            workers_count: No effect: nothing in the trainer needs workers.
            shuffling_queue_capacity: See `headrace.compat.petastorm.pytorch.DataLoader`.
            data_loader_fn: Another loader, called with the reader.
            petastorm_reader_kwargs: Arguments of `make_batch_reader`, but for the URL.

        Raises:
            ValueError: An argument is not known, not supported, or out of range.
        """
        from headrace.compat.petastorm.pytorch import DataLoader  # noqa: PLC0415 - torch

        make = data_loader_fn or DataLoader
        reader = self._reader(num_epochs, petastorm_reader_kwargs)
        return _open(
            reader,
            lambda: make(
                reader=reader,
                batch_size=batch_size,
                shuffling_queue_capacity=shuffling_queue_capacity,
            ),
        )

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,  # noqa: ARG002 - theirs
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> AbstractContextManager[tf.data.Dataset]:
        """Return a context in which a ``tf.data.Dataset`` yields batches, as namedtuples.

        Args:
            batch_size: Samples of a batch; None for 32.
            prefetch: Batches that TensorFlow reads ahead; None lets it choose.
            num_epochs: Passes over the data; None for no end.
            workers_count: No effect.
            shuffling_queue_capacity: See `headrace.compat.petastorm.pytorch.DataLoader`.
            petastorm_reader_kwargs: Arguments of `make_batch_reader`, but for the URL.

        Raises:
            ValueError: An argument is not known, not supported, or out of range.
            ConfigurationError: TensorFlow is not installed.
        """
        from headrace.compat.petastorm.tf_utils import tf_dataset  # noqa: PLC0415 - TensorFlow

        reader = self._reader(num_epochs, petastorm_reader_kwargs)
        shuffle = bool(shuffling_queue_capacity)
        size = batch_size or _BATCH_SIZE
        return _open(reader, lambda: tf_dataset(reader, size, shuffle=shuffle, prefetch=prefetch))

    def delete(self) -> None:
        """Remove what was converted, for all its users.

        Raises:
            ValueError: The dataset was there before, so it is not ours to remove.
            HeadraceError: The store refuses, or cannot be reached.
        """
        if self._conversion is None:
            raise ValueError(
                f"{self.cache_dir_url} was not written by make_spark_converter, which got its URL; "
                "delete it yourself if nobody needs it"
            )
        self._conversion.delete()

    def _reader(self, num_epochs: int | None, kwargs: dict[str, Any]) -> Reader:
        conversion = self._conversion
        make = (
            partial(NumpyDataset, None, self.cache_dir_url)
            if conversion is None
            else conversion.numpy_dataset
        )
        return open_reader(make, num_epochs=num_epochs, **kwargs)


def make_spark_converter(
    df: DataFrame | str,
    parquet_row_group_size_bytes: int | None = None,  # noqa: ARG001 - theirs
    compression_codec: str | None = None,
    dtype: str | None = "float32",
) -> SparkDatasetConverter:
    """Convert a DataFrame, or find the conversion of an equal one.

    It is written below the setting of Spark that `SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF`
    names, or else where `headrace.converter.make_converter` puts it, and stays until ``delete()``.

    Args:
        df: A DataFrame, or the URL of a dataset to read where it is.
        parquet_row_group_size_bytes: No effect: the samples are written as headrace's shards.
        compression_codec: ``lz4``, or one of theirs, which all become ``zstd``; None for none.
        dtype: ``float32`` or ``float64``: the type of all columns of floats, and of their arrays
            and vectors; None to keep the types.

    Raises:
        ValueError: ``compression_codec`` or ``dtype`` is not known.
        HeadraceError: See `headrace.converter.make_converter`.
    """
    codec = (compression_codec or "uncompressed").lower()
    if codec not in _CODECS:
        raise ValueError(f"compression_codec is {codec!r}; expected one of {', '.join(_CODECS)}")
    if dtype is not None and dtype not in _OTHER_FLOAT:
        raise ValueError(f"dtype is {dtype!r}; expected None, 'float32' or 'float64'")
    if isinstance(df, str):
        with open_dataset(df) as dataset:
            return SparkDatasetConverter(df, dataset.sample_count, None)
    from headrace.converter import WriteOptions, make_converter  # noqa: PLC0415 - Spark

    place = df.sparkSession.conf.get(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, None)
    types = {} if dtype is None else dict.fromkeys(_floats(df, _OTHER_FLOAT[dtype]), dtype)
    write = WriteOptions(compression=_CODECS[codec], types=types)
    conversion = make_converter(df, cache_dir=place, write=write)
    return SparkDatasetConverter(conversion.url, len(conversion), conversion)


def _floats(df: DataFrame, other: str) -> list[str]:
    """Return the columns of floats of another type, and of their arrays and vectors."""
    changed = {other, f"array<{other}>"} | ({"vector"} if other == "double" else set())
    return [field.name for field in df.schema if field.dataType.simpleString() in changed]


@contextmanager
def _open(reader: Reader, make: Callable[[], Any]) -> Iterator[Any]:
    with reader:
        yield make()
