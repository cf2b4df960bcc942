"""A converted DataFrame, to read or delete.

The client reads it. Only this module of the converter uses the client, and imports it when a reader
is requested: drivers that only write do not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from headrace.arguments import mapping_or_none
from headrace.converter.api.conversions_folder import ConversionCache
from headrace.storage import StoreOptions

if TYPE_CHECKING:
    import tensorflow as tf

    from headrace.client import NumpyDataset, RemoteDataset

End = Literal["drop_last", "uneven", "pad"]


class Reading(TypedDict, total=False):
    """Arguments of `NumpyDataset` that a conversion passes on."""

    seed: int
    shuffle: bool
    columns: Sequence[str]
    epochs: int | None
    end: End
    rank: int
    world_size: int
    steps: Sequence[Any]
    transform: Callable[[Any], Any] | None


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
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        columns: Sequence[str] = (),
        epochs: int | None = None,
        end: End = "drop_last",
        rank: int | None = None,
        world_size: int | None = None,
        dtypes: Mapping[str, str] | None = None,
        where: str | None = None,
        steps: Sequence[Any] = (),
        transform: Callable[[Any], Any] | None = None,
        restart: bool = False,
        device: str | None = None,
    ) -> RemoteDataset:
        """Return its batches as torch tensors, from a private server on this machine.

        ``with conversion.dataset(...) as dataset`` closes it at the end.

        The server starts with the first batch, reaches the store by `options`, and ends with the
        job. For other options, or to use your own server, make a `headrace.client.RemoteDataset`
        of `url`.

        Args:
            batch_size: See `RemoteDataset`.
            global_batch_size: See `RemoteDataset`.
            seed: See `RemoteDataset`.
            shuffle: See `RemoteDataset`.
            columns: See `RemoteDataset`.
            epochs: See `RemoteDataset`.
            end: See `RemoteDataset`.
            rank: See `RemoteDataset`.
            world_size: See `RemoteDataset`.
            dtypes: Types of columns of numbers in batches, such as ``{"features": "float32"}``: a
                `headrace.client.Cast` for each, after ``steps``.
            where: See `RemoteDataset`.
            steps: See `RemoteDataset`.
            transform: See `RemoteDataset`.
            restart: See `RemoteDataset`.
            device: See `RemoteDataset`.
        """
        from headrace.client import PrivateServer, RemoteDataset  # noqa: PLC0415 - see above

        return RemoteDataset(
            None,
            self.url,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            seed=seed,
            shuffle=shuffle,
            columns=columns,
            epochs=epochs,
            end=end,
            rank=rank,
            world_size=world_size,
            where=where,
            steps=_with_casts(steps, dtypes),
            transform=transform,
            restart=restart,
            device=device,
            private=PrivateServer(store=self._store()),
        )

    def numpy_dataset(
        self,
        *,
        batch_size: int,
        dtypes: Mapping[str, str] | None = None,
        **reading: Unpack[Reading],
    ) -> NumpyDataset:
        """Return the same batches as NumPy arrays, without torch.

        Args:
            batch_size: See `headrace.client.NumpyDataset`.
            dtypes: See `dataset`.
            reading: See `headrace.client.NumpyDataset`.
        """
        from headrace.client import NumpyDataset, PrivateServer  # noqa: PLC0415 - see above

        private = PrivateServer(store=self._store())
        reading["steps"] = _with_casts(reading.get("steps", ()), dtypes)
        return NumpyDataset(None, self.url, batch_size=batch_size, private=private, **reading)

    def tf_dataset(
        self,
        *,
        batch_size: int,
        dtypes: Mapping[str, str] | None = None,
        **reading: Unpack[Reading],
    ) -> tf.data.Dataset:
        """Return the same batches as a ``tf.data.Dataset``; each iteration is one epoch.

        Args:
            batch_size: See `numpy_dataset`.
            dtypes: See `numpy_dataset`.
            reading: See `numpy_dataset`.

        Raises:
            ConfigurationError: TensorFlow is not installed.
        """
        from headrace.client import tf_dataset  # noqa: PLC0415 - see above

        return tf_dataset(self.numpy_dataset(batch_size=batch_size, dtypes=dtypes, **reading))

    def delete(self) -> None:
        """Remove the conversion from the cache, for all its users.

        Current readers get an error at the next block. Deleting it again is not an error.

        Raises:
            StoreRefusedError: The store refuses.
            StoreUnavailableError: The store cannot be reached.
        """
        ConversionCache(self.cache_dir, options=self.options).remove(self.key)

    def _store(self) -> dict[str, object] | None:
        # Without options, all readers of this URL share one server.
        return None if self.options == StoreOptions() else asdict(self.options)


def _with_casts(steps: Sequence[Any], dtypes: Mapping[str, str] | None) -> Sequence[Any]:
    from headrace.client import Cast  # noqa: PLC0415 - see above

    mapping_or_none("dtypes", dtypes, wanted='types by column, such as {"features": "float32"}')
    if not dtypes:
        return steps
    return (*steps, *(Cast(column, dtype) for column, dtype in dtypes.items()))
