"""Options that several commands share, as decorators."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, TypeVar

import click

from headrace.cli.options.types import SIZE, NumberType

_Decorator = Callable[[Any], Any]

where_option: _Decorator = click.option(
    "--where",
    default="",
    metavar="EXPR",
    help="Only the samples for which this is true, such as \"label < 10 and lang = 'en'\".",
)

batch_size_option: _Decorator = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Samples per batch of each rank.",
)
global_batch_size_option: _Decorator = click.option(
    "--global-batch-size",
    type=click.IntRange(min=1),
    help="Samples per batch over all ranks, instead of --batch-size.",
)
end_option: _Decorator = click.option(
    "--end",
    type=click.Choice(["drop_last", "uneven", "pad"]),
    default="drop_last",
    show_default=True,
    help="What to do with an incomplete last batch.",
)
seed_option: _Decorator = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the order."
)
timeout_option: _Decorator = click.option(
    "--timeout-s",
    type=NumberType(min=0.1),
    default=5.0,
    show_default=True,
    help="Seconds to wait for the answer.",
)

_Result = TypeVar("_Result")
_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_RANK: tuple[_Decorator, ...] = (
    click.option(
        "--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Rank to read."
    ),
    click.option(
        "--world-size",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of ranks.",
    ),
    click.option(
        "--replication",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of consecutive ranks that get the same samples.",
    ),
    end_option,
)

_ORDER: tuple[_Decorator, ...] = (
    seed_option,
    click.option(
        "--shuffle/--no-shuffle",
        default=True,
        show_default=True,
        help="Shuffle, or read in storage order.",
    ),
    click.option(
        "--shuffle-bytes",
        type=SIZE,
        default="2GiB",
        show_default=True,
        help="Bytes of samples to shuffle together; 0 for the whole epoch.",
    ),
    click.option(
        "--shuffle-samples",
        type=click.IntRange(min=0),
        default=0,
        help="Number of samples to shuffle together; 0, the default, for no limit.",
    ),
    click.option(
        "--run-bytes",
        type=SIZE,
        default="2MiB",
        show_default=True,
        help="Bytes of neighbouring samples to read together.",
    ),
)


def rank_options(command: _Decorated) -> _Decorated:
    """Add ``--rank``, ``--world-size``, ``--replication`` and ``--end``."""
    return _with(_RANK, command)


def order_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Add ``--seed``, ``--shuffle`` and the options of the shuffle.

    The command receives them as one argument, ``spec: OrderSpec``, with one lane and the default
    unit.
    """

    @wraps(command)
    def wrapper(
        *,
        seed: int,
        shuffle: bool,
        shuffle_bytes: int,
        shuffle_samples: int,
        run_bytes: int,
        **others: Any,
    ) -> _Result:
        from headrace.order import OrderSpec  # noqa: PLC0415 - a command loads its layers

        spec = OrderSpec(
            seed=seed,
            shuffle=shuffle,
            run_bytes=run_bytes,
            shuffle_bytes=shuffle_bytes,
            shuffle_samples=shuffle_samples,
        )
        return command(spec=spec, **others)

    return _with(_ORDER, wrapper)


def utf8_text(read: Callable[[], str], *, option: str) -> str:
    """Return the text of a file, or refuse it if it is not UTF-8.

    Args:
        read: Reads the file as UTF-8.
        option: The option that names the file, for the error.
    """
    try:
        return read()
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{option}: the file is not text in UTF-8 (byte {error.start}: {error.reason})."
        ) from error


def _with(options: tuple[_Decorator, ...], command: _Decorated) -> _Decorated:
    # Help lists options in the order of decorators, starting with the last one applied.
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)
