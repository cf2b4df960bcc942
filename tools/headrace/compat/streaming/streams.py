"""One dataset of a `StreamingDataset`, and how much of it an epoch has."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.compat.streaming.stored import joined

NAMED = "headrace://"
"""The scheme of a dataset on a running server: ``headrace://host:port/name``."""


class Stream:
    """A dataset, or one of several that are mixed; the arguments are MosaicML's.

    Attributes:
        remote: URL of the dataset, or None.
        local: Its folder without a remote; with one, nothing is written there.
        split: The part of it that is read; may be empty.
        proportion: Its share of an epoch, once a `StreamingDataset` has read its size.
        repeat: The epoch's draws as a multiple of its samples, likewise.
        choose: The epoch's draws, likewise.
    """

    proportion: float
    repeat: float
    choose: int

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
    ) -> None:
        """Describe a dataset; nothing is read.

        Args:
            remote: URL of the dataset, or ``headrace://host:port/name`` for one on a server.
            local: Its folder, if there is no ``remote``; otherwise without effect.
            split: A folder in it.
            proportion: Weight relative to the other streams', >= 0.
            repeat: Draws per epoch as a multiple of its samples, >= 0.
            choose: Draws per epoch, >= 0.
            download_retry: Without effect, as the server tries again by itself.
            download_timeout: Without effect, likewise.
            validate_hash: Without effect: the server checks a hash if the index has one.
            keep_zip: Without effect: nothing is kept on a disk.

        Raises:
            ValueError: A number is negative, or two amounts are given.
        """
        given = {"proportion": proportion, "repeat": repeat, "choose": choose}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} found; at most one of `proportion`, `repeat` and `choose` "
                "may be given"
            )
        numbers: dict[str, float | None] = {**given, "download_retry": download_retry}
        for name, value in numbers.items():
            if value is not None and value < 0:
                raise ValueError(f"`{name}` must be non-negative, found {value}")
        if download_timeout is not None and download_timeout <= 0:
            raise ValueError(f"`download_timeout` must be positive, found {download_timeout}")
        self.given: dict[str, Any] = given
        self.remote, self.split = remote, split or ""
        self._local = local
        self.local = _usual_folder(remote, self.split) if local is None else local
        self.download_retry, self.download_timeout = download_retry, download_timeout
        self.validate_hash, self.keep_zip = validate_hash, keep_zip

    @property
    def is_named(self) -> bool:
        """Whether a running server serves it."""
        return (self.remote or "").startswith(NAMED)

    @property
    def url(self) -> str:
        """Where it is.

        Raises:
            ValueError: It has neither ``remote`` nor ``local``.
        """
        root = self.remote or self._local
        if not root:
            raise ValueError("`remote` and/or `local` path must be provided")
        if self.is_named and self.split:
            raise ValueError(
                f"split is {self.split!r}, but {self.remote} is a name on a server; expected the "
                "name of the split's dataset, and no split"
            )
        return joined(root, self.split)


class StreamsRegistry:
    """Subclasses of `Stream` by the names that ``stream_name`` gives."""

    def __init__(self) -> None:
        """Start with `Stream` alone."""
        self._makers: dict[str, Callable[..., Stream]] = {"stream": Stream}

    def register(self, name: str, *, func: Callable[..., Stream]) -> None:
        """Add a function that makes a stream."""
        self._makers[name] = func

    def get(self, name: str) -> Callable[..., Stream]:
        """Return the function of a name.

        Raises:
            ValueError: There is none.
        """
        if name not in self._makers:
            raise ValueError(
                f"stream_name is {name!r}; expected one of {', '.join(sorted(self._makers))}, or "
                "streams_registry.register(name, func=…) before"
            )
        return self._makers[name]


streams_registry = StreamsRegistry()


def _usual_folder(remote: str | None, split: str) -> str:
    digest = "" if remote is None else hashlib.blake2s(remote.encode(), digest_size=16).hexdigest()
    return os.path.join(tempfile.gettempdir(), digest, split)  # noqa: PTH118 - theirs, to the slash


def apply_weights(streams: Sequence[Stream], counts: Sequence[int], epoch_size: int | None) -> int:
    """Set how much of each stream an epoch has; return the samples of an epoch.

    Args:
        streams: The streams.
        counts: The samples of each.
        epoch_size: Samples of an epoch, if the weights are relative or not given; None for as many
            as there are.

    Raises:
        ValueError: Relative and absolute weights are mixed, or all are 0.
    """
    sizes = np.array(counts, np.int64)
    relative = [("proportion" in stream.given) for stream in streams]
    if any(relative) and not all(relative):
        raise ValueError(
            f"stream {relative.index(False)} has no `proportion`, but others have one; expected it "
            "for all streams, or `repeat` and `choose`"
        )
    is_plain = not any(stream.given for stream in streams)
    if epoch_size is not None and not is_plain and not any(relative):
        raise ValueError(
            f"epoch_size is {epoch_size}, but `repeat` or `choose` already give it; expected "
            "`proportion`s, or no epoch_size"
        )
    if all(relative):
        weights = np.array([stream.given["proportion"] for stream in streams], np.float64)
        draws = _apportioned(weights, int(epoch_size or sizes.sum()))
    elif epoch_size is not None:
        draws = _apportioned(sizes.astype(np.float64), epoch_size)
    else:
        pairs = zip(streams, counts, strict=True)
        draws = np.array([_draws(stream, count) for stream, count in pairs], np.int64)
    total = int(draws.sum())
    if not total:
        raise ValueError("an epoch would have no samples: all weights of the streams are 0")
    for stream, chosen, count in zip(streams, draws.tolist(), counts, strict=True):
        stream.choose, stream.repeat, stream.proportion = chosen, chosen / count, chosen / total
    return total


def _draws(stream: Stream, count: int) -> int:
    if "repeat" in stream.given:
        return int(stream.given["repeat"] * count)
    return int(stream.given.get("choose", count))


def _apportioned(weights: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    if not weights.sum():
        return np.zeros(len(weights), np.int64)
    exact = total * (weights / weights.sum())
    draws: NDArray[np.int64] = np.floor(exact + 1e-9).astype(np.int64)
    missing = np.argsort(-(exact - draws), kind="stable")[: total - int(draws.sum())]
    draws[missing] += 1
    return draws
