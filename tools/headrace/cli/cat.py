"""`headrace cat`: show samples."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from headrace.cli.options.objects import ObjectCommand, object_options
from headrace.cli.options.shared import fingerprint_option, missing_as_null_option
from headrace.cli.show.picture_files import write_grid, write_page
from headrace.cli.show.pictures import Sample, has_pillow, picture, picture_columns, png_of
from headrace.cli.show.python_values import python_value
from headrace.cli.show.terminal_images import image_protocol, sequence
from headrace.cli.show.texts import column_forms, printable, value_text
from headrace.errors import ColumnNotFoundError
from headrace.storage import OpenDataset, SourceOptions, open_dataset

if TYPE_CHECKING:
    import pyarrow as pa


_FILE = click.Path(dir_okay=False, path_type=Path)
_SIDE = 160
"""The longer side of an image in a terminal, in pixels."""

_UNLIMITED = 1 << 16
"""A terminal width in characters that no table reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which samples are shown, and how.

    Attributes:
        ids: Sample ids, separated by commas, such as 0,7,100-110.
        limit: Number of samples to show if no ids are given.
        columns: Columns to show, separated by commas.
        as_json: Print one JSON object per sample, with bytes as base64.
        html: Write an HTML page with a grid of images, each with its other columns.
        png: Write a picture with a grid of images and their ids.
        images: Show images in terminals that support them, such as kitty and iTerm2.
    """

    ids: str | None = None
    limit: int = 10
    columns: str | None = None
    as_json: bool = field(default=False, metadata={"option": "--json"})
    html: Path | None = None
    png: Path | None = None
    images: bool = True


@click.command(name="cat", cls=ObjectCommand)
@click.argument("url", metavar="URL")
@object_options(
    "headrace.cli.cat:Options",
    "options",
    types={"limit": click.IntRange(min=1), **dict.fromkeys(("html", "png"), _FILE)},
)
@fingerprint_option
@missing_as_null_option
def command(*, url: str, options: Options, fingerprint: str | None, missing_as_null: bool) -> None:
    """Show samples of the dataset at URL, in storage order.

    Long texts are shortened, and images are described by format, width, height and size. `null`
    means that a value is missing. If the terminal is too narrow for a table, each value gets a
    line.

    \b
    headrace cat s3://bucket/flights --ids 0,100-104
    headrace cat s3://bucket/photos --limit 100 --html photos.html --png photos.png
    """
    source = SourceOptions(missing_as_null=missing_as_null)
    with open_dataset(url, fingerprint=fingerprint, source_options=source) as dataset:
        chosen = (
            parse_ids(options.ids, count=dataset.sample_count)
            if options.ids
            else list(range(min(options.limit, dataset.sample_count)))
        )
        names = options.columns.split(",") if options.columns else dataset.schema.names
        samples = [Sample(sample, _sample(dataset, sample, names)) for sample in chosen]
        schema, forms = dataset.schema, column_forms(dataset.schema)
    if options.html is not None:
        write_page(options.html, samples, schema=schema, forms=forms, title=f"{url}: samples")
        click.echo(f"wrote {len(samples)} samples to {options.html}", err=True)
    if options.png is not None:
        write_grid(options.png, samples, schema=schema)
        click.echo(f"wrote {len(samples)} samples to {options.png}", err=True)
    if options.as_json:
        for sample in samples:
            found = {"sample_id": sample.sample_id, **sample.values}
            click.echo(json.dumps(found, default=_as_json))
    elif options.html is None and options.png is None:
        _show(names, samples, forms)
        if options.images:
            _show_images(samples, schema)


def parse_ids(text: str, *, count: int) -> list[int]:
    """Parse ``0,7,100-110``, where both ends of a range are included.

    Args:
        text: The text.
        count: The number of samples.
    """
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.UsageError(f"--ids: {part!r} is neither an id nor a range such as 100-110.")
        if int(last or first) < int(first):
            raise click.UsageError(f"--ids: {part!r} runs backwards; pass {last}-{first}.")
        if int(last or first) >= count:
            raise click.UsageError(
                f"--ids: sample id {last or first} is not in [0, {count}), the ids of the dataset."
            )
        ids += range(int(first), int(last or first) + 1)
    return ids


def _sample(dataset: OpenDataset, sample: int, names: list[str]) -> dict[str, object]:

    blocks, offsets = dataset.locate(np.array([sample], np.int64))
    row = dataset.read_block(int(blocks[0])).slice(int(offsets[0]), 1)
    for name in names:
        if name not in row.schema.names:
            known = ", ".join(row.schema.names)
            raise ColumnNotFoundError(
                f"there is no column {name!r}; there are {known}", column=name
            )
    return {name: python_value(row.column(name)[0]) for name in names}


def _show(names: list[str], samples: Sequence[Sample], forms: Mapping[str, str]) -> None:
    """Print a row for each sample, or a line for each value where rows would be cut off."""
    from rich.console import Console  # noqa: PLC0415 - only for the table
    from rich.measure import Measurement  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rows = [
        [
            Text(value_text(value, forms.get(name, "")), style="dim" if value is None else "")
            for name, value in sample.values.items()
        ]
        for sample in samples
    ]
    console = Console()
    table = Table("sample")
    for name in names:
        table.add_column(Text(printable(name)))
    for sample, row in zip(samples, rows, strict=True):
        table.add_row(str(sample.sample_id), *row)
    unlimited = console.options.update(width=_UNLIMITED)
    if Measurement.get(console, unlimited, table).minimum <= console.width:
        console.print(table)
        return
    for sample, row in zip(samples, rows, strict=True):
        record = Table.grid("", "", padding=(0, 2, 0, 2))
        for name, shown in zip(names, row, strict=True):
            record.add_row(Text(printable(name), style="bold"), shown)
        console.print(f"sample {sample.sample_id}", record)


def _show_images(samples: Sequence[Sample], schema: pa.Schema) -> None:
    protocol = image_protocol(os.environ, is_terminal=sys.stdout.isatty())
    if protocol is None or not has_pillow():
        return
    shown = picture_columns(schema, samples)
    for sample in samples:
        for name in shown:
            drawn = picture(sample.values[name], _SIDE)
            if not isinstance(drawn, str):
                click.echo(f"sample {sample.sample_id}, {printable(name)}")
                click.echo(sequence(png_of(drawn), protocol), nl=False, color=True)


def _as_json(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value)
