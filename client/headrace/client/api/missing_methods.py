"""Advice for methods that other libraries' datasets have and ours do not."""

from __future__ import annotations

from typing import NoReturn

_ADVICE = {
    "map": "give transform=function, which is called with each batch, or register it on the server "
    "and give steps=[Transform(name)]",
    "filter": 'give where="label < 10", or leave samples out with skips=',
    "shuffle": "batches come shuffled already, by seed= and order=",
    "batch": "batches come whole, of batch_size= samples",
    "shard": "give rank= and world_size=",
    "repeat": "epochs=None never ends, one epoch per `for`",
    "skip": "go to a place with seek(epoch, position)",
    "take": "use itertools.islice(dataset, count)",
    "prefetch": "it reads ahead already, up to Transport(prefetch_bytes=…)",
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
