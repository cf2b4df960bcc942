"""`headrace inspect`: show what a dataset contains."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click

from headrace.arguments import split_source
from headrace.cli.options.shared import fingerprint_option, missing_as_null_option, where_option
from headrace.cli.show.texts import column_forms, counted, size
from headrace.cli.stored.shard_tables import kept_of
from headrace.storage import (
    OpenDataset,
    SourceOptions,
    classes_of,
    list_versions,
    open_dataset,
    open_store,
    read_packing,
)

_MOST_SHOWN = 20  # classes; two lines of a terminal


@click.command(name="inspect")
@click.argument("url", metavar="URL")
@fingerprint_option
@missing_as_null_option
@where_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *, url: str, fingerprint: str | None, missing_as_null: bool, where: str, as_json: bool
) -> None:
    """Show the columns, sizes and versions of the dataset at URL.

    \b
    headrace inspect s3://bucket/flights
    headrace inspect s3://bucket/flights --where "origin = 'JFK'"
    """
    versions = [asdict(version) for version in list_versions(url)]
    options = SourceOptions(missing_as_null=missing_as_null)
    with open_dataset(url, fingerprint=fingerprint, source_options=options) as dataset:
        facts, columns = _facts(url, dataset), _columns(dataset)
        packed = _packed(url, dataset)
        if where:
            facts["kept_count"] = kept_of(dataset, where).count
    if as_json:
        click.echo(
            json.dumps({**facts, "columns": columns, "packed": packed, "versions": versions})
        )
        return
    _show_facts(facts)
    _show_packed(packed)
    _show_columns(columns)
    _show_classes(columns)
    _show_versions(versions, shown=str(facts["fingerprint"]))


def _facts(url: str, dataset: OpenDataset) -> dict[str, object]:
    return {
        "url": url,
        "fingerprint": dataset.fingerprint,
        "sample_count": dataset.sample_count,
        "shard_count": dataset.shard_count,
        "block_count": dataset.block_count,
        "raw_bytes": dataset.raw_bytes,
        "stored_bytes": dataset.stored_bytes,
    }


def _columns(dataset: OpenDataset) -> list[dict[str, object]]:

    forms = column_forms(dataset.schema)
    return [
        {
            "name": field.name,
            "type": str(field.type),
            "nullable": field.nullable,
            "format": forms.get(field.name),
            "classes": classes_of(field),
        }
        for field in dataset.schema
    ]


def _packed(url: str, dataset: OpenDataset) -> list[dict[str, Any]]:
    """Return the packed rows of a dataset, by length."""
    with closing(open_store(split_source(url)[0])) as store:
        pointer = read_packing(store, dataset.fingerprint)
    if pointer is None:
        return []
    columns = [pointer.column, *pointer.alike]
    rows = sorted(pointer.rows, key=lambda table: table.options.length)
    return [
        {"length": table.options.length, "row_count": table.row_count, "columns": columns}
        for table in rows
    ]


def _show_facts(facts: dict[str, object]) -> None:
    raw, stored = facts["raw_bytes"], facts["stored_bytes"]
    assert isinstance(raw, int)
    assert isinstance(stored, int)
    share = f", {stored / raw:.0%} of raw" if raw else ""
    click.echo(f"{facts['url']}")
    click.echo(f"  fingerprint  {facts['fingerprint']}")
    click.echo(f"  samples      {facts['sample_count']:,}")
    if "kept_count" in facts:
        kept, count = facts["kept_count"], facts["sample_count"]
        assert isinstance(kept, int)
        assert isinstance(count, int)
        click.echo(f"  kept         {kept:,}, {kept / count:.2%} of the samples")
    click.echo(f"  shards       {facts['shard_count']:,}")
    click.echo(f"  blocks       {facts['block_count']:,}")
    click.echo(f"  raw          {size(raw)}")
    click.echo(f"  stored       {size(stored)}{share}")


def _show_packed(packed: list[dict[str, Any]]) -> None:
    for rows in packed:
        length, names = rows["length"], ", ".join(rows["columns"])
        click.echo(
            f"  packed       {rows['row_count']:,} rows of {length:,} ({names}), "
            f"read as NAME:{length}"
        )


def _show_columns(columns: list[dict[str, object]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - only for the table
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table("column", "type", "nulls")
    for column in columns:
        nulls = "possible" if column["nullable"] else "none"
        # Types contain brackets, which rich would parse as markup.
        form = f" ({column['format']})" if column["format"] else ""
        table.add_row(escape(str(column["name"])), escape(f"{column['type']}{form}"), nulls)
    Console().print(table)


def _show_classes(columns: list[dict[str, Any]]) -> None:
    for column in columns:
        names = column["classes"]
        if names:
            shown = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_MOST_SHOWN]))
            more = f", … (--json has all {len(names):,})" if len(names) > _MOST_SHOWN else ""
            click.echo(f"classes of {column['name']}: {shown}{more}")


def _show_versions(versions: list[dict[str, Any]], *, shown: str) -> None:
    """Show the versions, newest first; nothing if the source has none."""
    if versions:
        click.echo("versions, newest first:")
    for age, version in enumerate(reversed(versions)):
        marks = ["current"] * (age == 0) + ["shown"] * (version["fingerprint"] == shown)
        # Not a table, which would truncate fingerprints on a narrow terminal.
        click.echo(
            f"  {version['fingerprint']}  {version['created']}  "
            f"{counted(version['sample_count'], 'sample')}  {', '.join(marks)}".rstrip()
        )
