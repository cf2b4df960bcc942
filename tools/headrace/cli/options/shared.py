"""Options that several commands share, as decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from headrace.cli.options.objects import object_options
from headrace.cli.options.types import NumberType

_Decorator = Callable[[Any], Any]

where_option: _Decorator = click.option(
    "--where",
    default="",
    show_default=False,
    metavar="EXPR",
    help="Only the samples for which this is true, such as \"label < 10 and lang = 'en'\".",
)

columns_option: _Decorator = click.option(
    "--columns",
    callback=lambda _context, _option, text: tuple(filter(None, (text or "").split(","))),
    help="Columns to read, separated by commas.",
)
missing_as_null_option: _Decorator = click.option(
    "--missing-as-null",
    is_flag=True,
    help="Read columns that some Parquet files lack, as null for their samples.",
)
fingerprint_option: _Decorator = click.option(
    "--fingerprint", help="Fingerprint of an older version."
)
batch_size_option: _Decorator = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=256,
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
    help="What to do with an incomplete last batch.",
)
seed_option: _Decorator = click.option(
    "--seed", type=click.IntRange(min=0), default=0, help="Seed of the order."
)
timeout_option: _Decorator = click.option(
    "--timeout-s",
    type=NumberType(min=0.1),
    default=5.0,
    help="Seconds to wait for the answer.",
)

rank_option: _Decorator = click.option(
    "--rank", type=click.IntRange(min=0), default=0, help="Rank to read."
)
world_size_option: _Decorator = click.option(
    "--world-size",
    type=click.IntRange(min=1),
    default=1,
    help="Number of ranks.",
)

ramp_option = click.option(
    "--ramp/--no-ramp",
    default=True,
    help="Start epoch 0 with small steps, so that its first batch comes early.",
)


def sharding_options(*, leave: tuple[str, ...] = ()) -> _Decorator:
    """Add ``--rank``, ``--world-size``, ``--end``, and an option for each field of `Sharding`.

    The command receives the latter as ``sharding: Sharding``.
    """
    own = object_options("headrace.client:Sharding", "sharding", leave=leave)
    return lambda command: rank_option(world_size_option(own(end_option(command))))


def order_options(*, leave: tuple[str, ...]) -> _Decorator:
    """Add ``--seed``, ``--shuffle``, and an option for each field of `Order` but those to leave.

    The command receives ``seed: int``, ``shuffle: bool`` and ``order: Order``.
    """
    shuffle = click.option(
        "--shuffle/--no-shuffle",
        default=True,
        help="Shuffle, or read in storage order.",
    )
    # Sample ids have names of their own in commands, and the unit is the global batch.
    own = object_options("headrace.client:Order", "order", leave=("unit", "with_ids", *leave))
    return lambda command: seed_option(shuffle(own(command)))


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
