"""`headrace cat`: show samples."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from headrace.cli._show import column_forms, value_text

if TYPE_CHECKING:
    from headrace.storage import OpenDataset


@click.command(name="cat")
@click.argument("url", metavar="URL")
@click.option("--ids", help="Sample ids with commas between, such as 0,7,100-110.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="How many samples to show if no ids are given.",
)
@click.option("--columns", help="Names of the columns to show, with commas between.")
@click.option("--fingerprint", help="An older version, by its fingerprint.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a sample; bytes as base64.")
def command(
    *,
    url: str,
    ids: str | None,
    limit: int,
    columns: str | None,
    fingerprint: str | None,
    as_json: bool,
) -> None:
    """Show samples of the dataset at URL, in storage order.

    Numbers and short texts are shown as they are, long ones cut, images by format, width, height
    and size.

    \b
    headrace cat s3://bucket/flights --ids 0,100-104
    """
    from headrace.storage import open_dataset  # noqa: PLC0415 - needs the [storage] extra

    with open_dataset(url, fingerprint=fingerprint) as dataset:
        chosen = parse_ids(ids) if ids else list(range(min(limit, dataset.sample_count)))
        names = columns.split(",") if columns else dataset.schema.names
        samples = [(sample, _sample(dataset, sample, names)) for sample in chosen]
        forms = column_forms(dataset.schema)
    if as_json:
        for sample, values in samples:
            click.echo(json.dumps({"sample_id": sample, **values}, default=_as_json))
    else:
        _show_table(names, samples, forms)


def parse_ids(text: str) -> list[int]:
    """Read ``0,7,100-110``; both ends of a span are meant."""
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.UsageError(f"--ids: {part!r} is no id and no span such as 100-110.")
        ids += range(int(first), int(last or first) + 1)
    return ids


def _sample(dataset: OpenDataset, sample: int, names: list[str]) -> dict[str, object]:
    import numpy as np  # noqa: PLC0415

    from headrace.errors import ColumnNotFoundError  # noqa: PLC0415

    blocks, offsets = dataset.locate(np.array([sample], np.int64))
    row = dataset.read_block(int(blocks[0])).slice(int(offsets[0]), 1)
    for name in names:
        if name not in row.schema.names:
            known = ", ".join(row.schema.names)
            raise ColumnNotFoundError(
                f"there is no column {name!r}; there are {known}", column=name
            )
    return {name: row.column(name)[0].as_py() for name in names}


def _show_table(
    names: list[str], samples: list[tuple[int, dict[str, object]]], forms: Mapping[str, str]
) -> None:
    from rich.console import Console  # noqa: PLC0415 - only for the table
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table("sample", *map(escape, names))
    for sample, values in samples:
        shown = (value_text(values[name], forms.get(name, "")) for name in names)
        table.add_row(str(sample), *map(escape, shown))
    Console().print(table)


def _as_json(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value)
