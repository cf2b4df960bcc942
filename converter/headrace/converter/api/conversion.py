"""A converted DataFrame, to read or delete.

The client reads it. Only this module of the converter uses the client, and imports it when a reader
is requested: drivers that only write do not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from headrace.arguments import mapping_or_none
from headrace.converter.api.conversions_folder import ConversionCache
from headrace.storage import StoreOptions

if TYPE_CHECKING:
    import tensorflow as tf
    from numpy.typing import NDArray
    from typing_extensions import TypeVar

    from headrace.client import Batch, NumpyDataset, Order, RemoteDataset, Sharding, Transport

    # What a loop gets: what ``transform=`` returns, or a batch.
    Arrays = dict[str, NDArray[Any]]
    Result = TypeVar("Result", default=Batch)
    ArraysResult = TypeVar("ArraysResult", default=Arrays)


class Reading(TypedDict, total=False):
    """Arguments of `RemoteDataset` and `NumpyDataset` that a conversion passes on."""

    batch_size: int
    seed: int
    shuffle: bool
    end: Literal["drop_last", "uneven", "pad"]
    columns: Sequence[str]
    stages: Sequence[Any]
    rank: int
    world_size: int
    order: Order | None
    sharding: Sharding | None


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted DataFrame. Picklable and small: a URL and two numbers.

    ``len()`` is the number of samples.

    Attributes:
        url: The URL of the dataset, which any reader of datasets can read.
        fingerprint: The fingerprint of the dataset.
        sample_count: The number of samples.
        key: The name of the conversion in its cache.
        cache_dir: The cache.
        options: The given options of the store; unset ones are taken from the environment of the
            reader.
    """

    url: str
    fingerprint: str
    sample_count: int
    key: str
    cache_dir: str
    options: StoreOptions = field(repr=False)

    def __len__(self) -> int:
        return self.sample_count

    def dataset(
        self,
        *,
        epochs: int | Literal["same"] | None = None,
        device: str | None = None,
        where: str | None = None,
        dtypes: Mapping[str, str] | None = None,
        transform: Callable[[Batch], Result] | None = None,
        **reading: Unpack[Reading],
    ) -> RemoteDataset[Result]:
        """Return its batches as torch tensors, from a private server on this machine.

        ``with conversion.dataset(...) as dataset`` closes it at the end.

        The server starts with the first batch, reaches the store by `options`, and ends with the
        job. For other options, or to use your own server, make a `headrace.client.RemoteDataset`
        of `url`.

        Args:
            epochs: See `RemoteDataset`.
            device: See `RemoteDataset`.
            where: See `headrace.client.Selection`.
            dtypes: Types of columns of numbers in batches, such as ``{"features": "float32"}``: a
                `headrace.client.Cast` for each, after ``stages``.
            transform: See `RemoteDataset`.
            reading: See `RemoteDataset`.
        """
        from headrace.client import RemoteDataset, Selection  # noqa: PLC0415 - see above

        reading["stages"] = _with_casts(reading.get("stages", ()), dtypes)
        source = Selection(self.url, where=where)
        return RemoteDataset(
            None,
            source,
            epochs=epochs,
            device=device,
            transform=transform,
            transport=self._transport(),
            **reading,
        )

    def numpy_dataset(
        self,
        *,
        epochs: int | None = None,
        where: str | None = None,
        dtypes: Mapping[str, str] | None = None,
        transform: Callable[[Arrays], ArraysResult] | None = None,
        **reading: Unpack[Reading],
    ) -> NumpyDataset[ArraysResult]:
        """Return the same batches as NumPy arrays, without torch.

        Args:
            epochs: See `headrace.client.NumpyDataset`.
            where: See `headrace.client.Selection`.
            dtypes: See `dataset`.
            transform: See `headrace.client.NumpyDataset`.
            reading: See `headrace.client.NumpyDataset`.
        """
        from headrace.client import NumpyDataset, Selection  # noqa: PLC0415 - see above

        reading["stages"] = _with_casts(reading.get("stages", ()), dtypes)
        source = Selection(self.url, where=where)
        return NumpyDataset(
            None,
            source,
            epochs=epochs,
            transform=transform,
            transport=self._transport(),
            **reading,
        )

    def tf_dataset(
        self,
        *,
        epochs: int | None = None,
        where: str | None = None,
        dtypes: Mapping[str, str] | None = None,
        **reading: Unpack[Reading],
    ) -> tf.data.Dataset:
        """Return the same batches as a ``tf.data.Dataset``; each iteration is one epoch.

        Args:
            epochs: See `numpy_dataset`.
            where: See `numpy_dataset`.
            dtypes: See `numpy_dataset`.
            reading: See `numpy_dataset`.

        Raises:
            ConfigurationError: TensorFlow is not installed.
        """
        from headrace.client import tf_dataset  # noqa: PLC0415 - see above

        return tf_dataset(self.numpy_dataset(epochs=epochs, where=where, dtypes=dtypes, **reading))

    def delete(self) -> None:
        """Remove the conversion from the cache, for all its users.

        Current readers get an error at the next block. Deleting it again is not an error.

        Raises:
            StoreRefusedError: The store refuses.
            StoreUnavailableError: The store cannot be reached.
        """
        ConversionCache(self.cache_dir, options=self.options).remove(self.key)

    def _transport(self) -> Transport:
        from headrace.client import PrivateServer, Transport  # noqa: PLC0415 - see above

        # Without options, all readers of this URL share one server.
        store = None if self.options == StoreOptions() else self.options.settings()
        return Transport(private=PrivateServer(store=store))


def _with_casts(stages: Sequence[Any], dtypes: Mapping[str, str] | None) -> Sequence[Any]:
    from headrace.client import Cast  # noqa: PLC0415 - see above

    mapping_or_none("dtypes", dtypes, wanted='types by column, such as {"features": "float32"}')
    if not dtypes:
        return stages
    return (*stages, *(Cast(column, dtype) for column, dtype in dtypes.items()))
