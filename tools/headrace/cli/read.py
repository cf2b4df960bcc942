"""`headrace read`: stream batches to the terminal, one line per batch."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TextIO, cast

import click
import numpy as np

from headrace.cli.options.access import access_options
from headrace.cli.options.objects import ObjectCommand, field_options
from headrace.cli.options.shared import (
    batch_size_option,
    columns_option,
    order_options,
    sharding_options,
    utf8_text,
    where_option,
)
from headrace.cli.options.types import TARGET
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is read, from where on, and how it is printed.

    Attributes:
        mixture: JSON file that describes a mixture of datasets, instead of DATASET.
        epoch: First epoch to read.
        epochs: Number of epochs to read.
        position: Number of samples to skip in the first epoch.
        token: Resume after the batch with this token (base64).
        batches: Stop after this many batches.
        ids: Print the sample ids of each batch.
        as_json: Print one JSON object per line.
        connect_s: Seconds to wait for the server.
    """

    target: str
    dataset: str
    batch_size: int
    rank: int
    world_size: int
    sharding: Sharding
    seed: int
    shuffle: bool
    order: Order
    end: str
    where: str
    columns: tuple[str, ...]
    access: Access
    mixture: TextIO | None = field(default=None, metadata={"metavar": "FILE"})
    epoch: int = 0
    epochs: int = 1
    position: int = 0
    token: str | None = None
    batches: int | None = None
    ids: bool = field(default=False, metadata={"option": "--ids"})
    as_json: bool = field(default=False, metadata={"option": "--json"})
    connect_s: float = 10.0


@click.command(name="read", cls=ObjectCommand)
@click.argument("target", metavar="TARGET", type=TARGET)
@click.argument("dataset", metavar="[DATASET]", default="")
@batch_size_option
@sharding_options(leave=("share",))
@order_options(leave=())
@columns_option
@where_option
@field_options(
    "headrace.cli.read:Options",
    types={
        "mixture": click.File(encoding="utf-8"),
        **dict.fromkeys(("epochs", "batches"), click.IntRange(min=1)),
    },
)
@access_options
def command(**given: Any) -> None:
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
    options = Options(**given)
    reader = _reader(options)
    format_line = _json_line if options.as_json else _text_line
    found = (event for event in reader.events() if isinstance(event, BatchEvent))
    for event in islice(found, options.batches):
        click.echo(format_line(event))


def _reader(options: Options) -> BatchReader:
    sharding, order, mixture = options.sharding, options.order, options.mixture
    size = sharding.global_batch_size or options.batch_size * max(1, options.world_size)
    place = Place(options.epoch, options.position)
    spec = order.spec(seed=options.seed, shuffle=options.shuffle, unit=size)
    if options.token is not None:
        content = decode_token(resumed := _token_bytes(options.token))
        place, spec = Place(content.epoch, content.position, resumed), content.spec
        size = sharding.global_batch_size or content.global_batch_size
    text = None if mixture is None else utf8_text(mixture.read, option="--mixture")
    return BatchReader(
        [options.target],
        ReadOptions(
            dataset=options.dataset,
            order=spec,
            global_batch_size=size,
            rank=options.rank,
            world_size=options.world_size,
            end=EndMode(options.end),
            columns=options.columns,
            stages=(
                *where_stages(options.where),
                *(stage for stage in (*order.stages, *sharding.stages) if stage.is_asked),
                *(() if text is None else (read_mixture(text),)),
            ),
            with_ids=options.ids,
            end_epoch=place.epoch + options.epochs,
        ),
        place=place,
        deadlines=Deadlines(connect_s=options.connect_s),
        allocate=lambda length: np.empty(length, dtype=np.uint8),
        access=options.access,
    )


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
