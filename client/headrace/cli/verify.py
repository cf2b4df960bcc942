"""`headrace verify`: read and check a whole dataset."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headrace.cli.show.progress import count_progress, shard_progress
from headrace.cli.show.texts import counted

if TYPE_CHECKING:
    from headrace.storage import OpenDataset, RepairReport


@click.command(name="verify")
@click.argument("url", metavar="URL")
@click.option("--fingerprint", help="Fingerprint of an older version.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Blocks to read at the same time.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per fault, and a final one."
)
@click.option(
    "--repair-manifest",
    is_flag=True,
    help="Commit a new version of everything that can be read.",
)
@click.option(
    "--shards",
    "patterns",
    multiple=True,
    help="With --repair-manifest: names of the shards to keep, such as '*-9f3c2a7b0011.arrow'; can "
    "be given several times, in the order of the samples.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    url: str,
    fingerprint: str | None,
    threads: int,
    as_json: bool,
    repair_manifest: bool,
    patterns: tuple[str, ...],
) -> None:
    """Check every block of the dataset at URL against its manifest.

    The command lists each damaged block with its shard, byte offset and samples, and each shard
    whose bytes outside its blocks differ from the manifest; the exit code is 1 if there are any. It
    also counts samples without a checksum, and shards with uneven blocks.

    With --repair-manifest, the command commits a new version of everything that can be read, and
    lists what is lost; the exit code is 1 if anything is. An intact dataset stays unchanged.

    \b
    headrace verify s3://bucket/flights
    headrace verify s3://bucket/flights --repair-manifest
    """
    if repair_manifest and fingerprint:
        raise click.UsageError(
            "--repair-manifest repairs the current version; leave --fingerprint out."
        )
    if patterns and not repair_manifest:
        raise click.UsageError("--shards needs --repair-manifest.")
    if repair_manifest:
        ctx.exit(_repair(url, patterns, as_json=as_json))
    ctx.exit(_verify(url, fingerprint=fingerprint, threads=threads, as_json=as_json))


def _verify(url: str, *, fingerprint: str | None, threads: int, as_json: bool) -> int:
    from headrace.storage import open_dataset, verify_blocks, verify_shards  # noqa: PLC0415 - [storage] extra

    fault_count = lost = odd_shards = unprotected = 0
    with open_dataset(url, fingerprint=fingerprint) as dataset:
        blocks = dataset.block_count
        with count_progress("verifying", total=blocks, unit="blocks") as progress:
            for fault in verify_blocks(dataset, threads=threads, progress=progress):
                fault_count += 1
                lost += fault.end_sample - fault.first_sample
                samples = f"samples {fault.first_sample} to {fault.end_sample - 1}"
                click.echo(json.dumps(asdict(fault)) if as_json else f"{fault.message} ({samples})")
        for check in verify_shards(dataset, threads=threads):
            unprotected += check.unprotected_count
            if check.problem is not None:
                odd_shards += 1
                text = (
                    f"shard {check.shard}: {check.problem}; restore it, or convert the data again"
                )
                click.echo(json.dumps(asdict(check)) if as_json else text)
        total = dataset.sample_count
        uneven = _uneven_count(dataset)
    if as_json:
        facts = {"blocks": blocks, "faults": fault_count, "samples_lost": lost}
        facts |= {"odd_shards": odd_shards, "samples_unprotected": unprotected}
        facts["uneven_shards"] = uneven
        click.echo(json.dumps(facts))
        return 1 if fault_count or odd_shards else 0
    if fault_count:
        click.echo(
            f"{url}: {fault_count} of {blocks} blocks are damaged, {lost:,} of {total:,} samples"
        )
    elif not odd_shards:
        click.echo(
            f"{url}: all {counted(blocks, 'block')} match the manifest, {counted(total, 'sample')}"
        )
    if odd_shards:
        click.echo(
            f"{url}: the bytes outside the blocks of {counted(odd_shards, 'shard')} differ from "
            "the manifest"
        )
    if uneven:
        click.echo(
            f"{url}: the blocks of {counted(uneven, 'shard')} differ in their number of "
            "samples, so a shuffled order reads some of them twice; headrace convert writes even "
            "blocks"
        )
    if unprotected:
        click.echo(
            f"{url}: {unprotected:,} of {total:,} samples have no checksum, so changed bytes in "
            "them cannot be detected"
        )
    return 1 if fault_count or odd_shards else 0


def _uneven_count(dataset: OpenDataset) -> int:
    stretches = dataset.stretches()
    return int(((stretches.block_samples == 0) & (stretches.sample_counts > 0)).sum())


def _repair(url: str, patterns: tuple[str, ...], *, as_json: bool) -> int:
    from headrace.storage import open_store, repair_manifest  # noqa: PLC0415 - [storage] extra

    store = open_store(url)
    try:
        # The number of shards is unknown before the remaining files have been listed.
        with shard_progress("repairing") as progress:
            report = repair_manifest(store, patterns=patterns, progress=progress)
    finally:
        store.close()
    for lost in report.lost:
        click.echo(json.dumps(asdict(lost)) if as_json else f"lost: {lost.message}")
    facts = {
        "fingerprint": report.fingerprint,
        "fingerprint_before": report.fingerprint_before,
        "sample_count": report.sample_count,
        "shard_count": report.shard_count,
        "samples_lost": report.samples_lost,
        "written": report.written,
    }
    click.echo(json.dumps(facts) if as_json else _repair_text(url, report))
    return 1 if report.lost else 0


def _repair_text(url: str, report: RepairReport) -> str:
    if not report.written:
        return f"{url}: nothing to repair, {report.sample_count:,} samples"
    lost = report.samples_lost
    loss = "none lost" if not report.lost else "some lost" if lost is None else f"{lost:,} lost"
    return (
        f"{url}: {counted(report.sample_count, 'sample')} in "
        f"{counted(report.shard_count, 'shard')}, {loss}; "
        f"fingerprint {report.fingerprint}, previously {report.fingerprint_before or 'unknown'}"
    )
