"""`headrace read`: stream batches to the terminal, one line per batch."""

from __future__ import annotations

import base64
import json
from itertools import islice
from typing import TextIO, cast

import click
import numpy as np

from headrace.cli.options.access import access_options
from headrace.cli.options.objects import ObjectCommand
from headrace.cli.options.shared import (
    batch_size_option,
    columns_option,
    order_options,
    sharding_options,
    utf8_text,
    where_option,
)
from headrace.cli.options.types import NOT_NEGATIVE, TARGET
from headrace.client import (
    Access,
    BatchEvent,
    BatchReader,
    Deadlines,
    Order,
    Place,
    ReadOptions,
    Sharding,
    read_mixture,
)
from headrace.client.options.where import where_stages
from headrace.errors import TokenMalformedError
from headrace.order import EndMode, decode_token


@click.command(name="read", cls=ObjectCommand)
@click.argument("target", metavar="TARGET", type=TARGET)
@click.argument("dataset", metavar="[DATASET]", default="")
@click.option(
    "--mixture",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="JSON file that describes a mixture of datasets, instead of DATASET.",
)
@batch_size_option
@sharding_options()
@order_options(leave=())
@columns_option
@where_option
@click.option("--epoch", type=click.IntRange(min=0), default=0, help="First epoch to read.")
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=1,
    help="Number of epochs to read.",
)
@click.option(
    "--position",
    type=click.IntRange(min=0),
    default=0,
    help="Number of samples to skip in the first epoch.",
)
@click.option("--token", help="Resume after the batch with this token (base64).")
@click.option("--batches", type=click.IntRange(min=1), help="Stop after this many batches.")
@click.option("--ids", is_flag=True, help="Print the sample ids of each batch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option(
    "--connect-s",
    type=NOT_NEGATIVE,
    default=10.0,
    help="Seconds to wait for the server.",
)
@access_options
def command(
    *,
    target: str,
    dataset: str,
    mixture: TextIO | None,
    batch_size: int,
    rank: int,
    world_size: int,
    sharding: Sharding,
    seed: int,
    shuffle: bool,
    order: Order,
    end: str,
    where: str,
    columns: tuple[str, ...],
    epoch: int,
    epochs: int,
    position: int,
    token: str | None,
    batches: int | None,
    ids: bool,
    as_json: bool,
    connect_s: float,
    access: Access,
) -> None:
    """Stream batches of DATASET, and print one line per batch.

    A line contains the epoch, the step, the position, the number of samples of this rank, and the
    token that resumes after the batch. The same options always print the same lines. The ids of a
    mixture are printed as DATASET:ID, with datasets counted from 0.

    \b
    headrace read localhost:50051 flights --batch-size 256 --ids
    headrace read localhost:50051 flights --rank 1 --world-size 4 --json
    headrace read feeder:50051 flights --tls-ca ca.pem --token-file token
    headrace read localhost:50051 flights --where "origin = 'JFK' and month <= 6"
    headrace read localhost:50051 --mixture mixture.json --ids
    """
    size = sharding.global_batch_size or batch_size * max(1, world_size // sharding.replication)
    place, spec = Place(epoch, position), order.spec(seed=seed, shuffle=shuffle, unit=size)
    if token is not None:
        content = decode_token(resumed := _token_bytes(token))
        place, spec = Place(content.epoch, content.position, resumed), content.spec
        size = sharding.global_batch_size or content.global_batch_size
    text = None if mixture is None else utf8_text(mixture.read, option="--mixture")
    reader = BatchReader(
        [target],
        ReadOptions(
            dataset=dataset,
            order=spec,
            global_batch_size=size,
            rank=rank,
            world_size=world_size,
            replication=sharding.replication,
            end=EndMode(end),
            columns=columns,
            stages=(
                *where_stages(where),
                *(stage for stage in (*order.stages, *sharding.stages) if stage.is_asked),
                *(() if text is None else (read_mixture(text),)),
            ),
            with_ids=ids,
            end_epoch=place.epoch + epochs,
        ),
        place=place,
        deadlines=Deadlines(connect_s=connect_s),
        allocate=lambda length: np.empty(length, dtype=np.uint8),
        access=access,
    )
    format_line = _json_line if as_json else _text_line
    found = (event for event in reader.events() if isinstance(event, BatchEvent))
    for event in islice(found, batches):
        click.echo(format_line(event))


def _text_line(event: BatchEvent) -> str:
    header = event.header
    line = (
        f"epoch {header.epoch}  step {header.step}  position {header.position}  "
        f"samples {header.sample_count}  token {_token_text(event)}"
    )
    ids = _ids(event)
    if ids is None:
        return line
    names = [":".join(map(str, each)) if isinstance(each, list) else str(each) for each in ids]
    return f"{line}  ids {','.join(names)}"


def _json_line(event: BatchEvent) -> str:
    header = event.header
    fields: dict[str, object] = {
        "epoch": header.epoch,
        "step": header.step,
        "position": header.position,
        "sample_count": header.sample_count,
        "token": _token_text(event),
    }
    ids = _ids(event)
    if ids is not None:
        fields["ids"] = ids
    return json.dumps(fields)


def _ids(event: BatchEvent) -> list[int] | list[list[int]] | None:
    view = event.columns.get("headrace.sample_id")
    return None if view is None else cast("list[int]", view.values.tolist())


def _token_text(event: BatchEvent) -> str:
    return base64.b64encode(event.header.resume_token).decode("ascii")


def _token_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise TokenMalformedError(
            f"--token is not base64 ({error}); expected what `headrace read` printed after 'token'"
        ) from error
