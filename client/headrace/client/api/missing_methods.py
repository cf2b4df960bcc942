"""Advice for methods that other libraries' datasets have and ours do not."""

from __future__ import annotations

from typing import NoReturn

_ADVICE = {
    "map": "give transform=function, which is called with each batch, or register it on the server "
    "and give stages=[Transform(name)]",
    "filter": 'give Selection(name, where="label < 10") as dataset, or Selection(name, skips=[…])',
    "shuffle": "batches are already shuffled, by seed= and order=",
    "batch": "the dataset already gives batches of batch_size= samples",
    "shard": "give rank= and world_size=",
    "repeat": "epochs=None reads without end, one epoch per `for`; epochs='same' repeats one",
    "skip": "move with seek(epoch, position)",
    "take": "use itertools.islice(dataset, count)",
    "prefetch": "it already reads ahead, up to Transport(prefetch_bytes=…)",
    "select_columns": "give columns=",
    "with_format": "use batch.to_numpy() or batch.to_jax()",
}


def raise_missing(owner: object, name: str) -> NoReturn:
    """Raise an `AttributeError`, with advice on what to use instead if there is any.

    Raises:
        AttributeError: Always.
    """
    title = type(owner).__name__
    advice = f"; {_ADVICE[name]}" if name in _ADVICE else ""
    raise AttributeError(
        f"{title!r} object has no attribute {name!r}{advice}", name=name, obj=owner
    )
