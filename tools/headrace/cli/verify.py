"""`headrace verify`: read and check a whole dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field

import click

from headrace.arguments import split_source
from headrace.cli.options.objects import ObjectCommand, object_options
from headrace.cli.options.shared import fingerprint_option, missing_as_null_option
from headrace.cli.show.progress import count_progress, shard_progress
from headrace.cli.show.texts import counted
from headrace.storage import (
    Fault,
    OpenDataset,
    PackingFault,
    RepairReport,
    ShardCheck,
    SourceOptions,
    open_dataset,
    open_store,
    repair_manifest,
    verify_blocks,
    verify_packing,
    verify_shards,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the dataset is checked.

    Attributes:
        threads: Blocks to read at the same time.
        as_json: Print one JSON object per fault, and a final one.
        repair_manifest: Commit a new version of everything that can be read.
        patterns: With --repair-manifest: names of the shards to keep, such as
            '*-9f3c2a7b0011.arrow', in the order of the samples.
    """

    threads: int = 16
    as_json: bool = field(default=False, metadata={"option": "--json"})
    repair_manifest: bool = field(default=False, metadata={"option": "--repair-manifest"})
    patterns: tuple[str, ...] = field(default=(), metadata={"option": "--shards"})


@click.command(name="verify", cls=ObjectCommand)
@click.argument("url", metavar="URL")
@fingerprint_option
@missing_as_null_option
@object_options("headrace.cli.verify:Options", "options", types={"threads": click.IntRange(min=1)})
@click.pass_context
def command(
    ctx: click.Context,
    *,
    url: str,
    fingerprint: str | None,
    missing_as_null: bool,
    options: Options,
) -> None:
    """Check every block of the dataset at URL against its manifest.

    The command lists each damaged block with its shard, byte offset and samples, and each shard
    whose bytes outside its blocks differ from the manifest, and each damaged file of those that
    packed rows need; the exit code is 1 if there are any. It also counts samples without a
    checksum, and shards with uneven blocks.

    With --repair-manifest, the command commits a new version of everything that can be read, and
    lists what is lost; the exit code is 1 if anything is. An intact dataset stays unchanged.

    \b
    headrace verify s3://bucket/flights
    headrace verify s3://bucket/flights --repair-manifest
    """
    if options.repair_manifest and fingerprint:
        raise click.UsageError(
            "--repair-manifest repairs the current version; leave --fingerprint out."
        )
    if options.patterns and not options.repair_manifest:
        raise click.UsageError("--shards needs --repair-manifest.")
    if options.repair_manifest:
        ctx.exit(_repair(url, options.patterns, as_json=options.as_json))

    source = SourceOptions(missing_as_null=missing_as_null)
    with open_dataset(url, fingerprint=fingerprint, source_options=source) as dataset:
        ctx.exit(_verify(url, dataset, threads=options.threads, as_json=options.as_json))


@dataclass(slots=True)
class _Findings:
    """What is wrong with a dataset, in numbers."""

    blocks: int = 0
    faults: int = 0
    samples_lost: int = 0
    odd_shards: int = 0
    samples_unprotected: int = 0
    uneven_shards: int = 0
    packing_faults: int = 0

    @property
    def is_damaged(self) -> bool:
        return bool(self.faults or self.odd_shards or self.packing_faults)


def _verify(url: str, dataset: OpenDataset, *, threads: int, as_json: bool) -> int:

    found = _Findings(blocks=dataset.block_count)

    def show(each: Fault | ShardCheck | PackingFault, text: str) -> None:
        click.echo(json.dumps(asdict(each)) if as_json else text)

    with count_progress("verifying", total=found.blocks, unit="blocks") as progress:
        for fault in verify_blocks(dataset, threads=threads, progress=progress):
            found.faults += 1
            found.samples_lost += fault.end_sample - fault.first_sample
            samples = f"samples {fault.first_sample} to {fault.end_sample - 1}"
            show(fault, f"{fault.message} ({samples})")
    for check in verify_shards(dataset, threads=threads):
        found.samples_unprotected += check.unprotected_count
        if check.problem is not None:
            found.odd_shards += 1
            advice = "restore it, or convert the data again"
            show(check, f"shard {check.shard}: {check.problem}; {advice}")
    with closing(open_store(split_source(url)[0])) as store:
        for damage in verify_packing(store, dataset):
            found.packing_faults += 1
            show(damage, damage.message)
    found.uneven_shards = _uneven_count(dataset)
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        for line in _summary(found, dataset.sample_count):
            click.echo(f"{url}: {line}")
    return 1 if found.is_damaged else 0


def _summary(found: _Findings, total: int) -> Iterator[str]:
    if found.faults:
        damaged = f"{found.faults} of {found.blocks} blocks are damaged"
        yield f"{damaged}, {found.samples_lost:,} of {total:,} samples"
    elif not found.odd_shards:
        yield f"all {counted(found.blocks, 'block')} match the manifest, {counted(total, 'sample')}"
    if found.odd_shards:
        odd = counted(found.odd_shards, "shard")
        yield f"the bytes outside the blocks of {odd} differ from the manifest"
    if found.packing_faults:
        yield f"{counted(found.packing_faults, 'file')} of packed rows cannot be used"
    if found.uneven_shards:
        yield (
            f"the blocks of {counted(found.uneven_shards, 'shard')} differ in their number of "
            "samples, so a shuffled order reads some of them twice; headrace convert writes even "
            "blocks"
        )
    if found.samples_unprotected:
        yield (
            f"{found.samples_unprotected:,} of {total:,} samples have no checksum, so changed "
            "bytes in them cannot be detected"
        )


def _uneven_count(dataset: OpenDataset) -> int:
    stretches = dataset.stretches()
    return int(((stretches.block_samples == 0) & (stretches.sample_counts > 0)).sum())


def _repair(url: str, patterns: tuple[str, ...], *, as_json: bool) -> int:

    # The number of shards is unknown before the remaining files have been listed.
    with closing(open_store(url)) as store, shard_progress("repairing") as progress:
        report = repair_manifest(store, patterns=patterns, progress=progress)
    for lost in report.lost:
        click.echo(json.dumps(asdict(lost)) if as_json else f"lost: {lost.message}")
    facts = {**asdict(report), "samples_lost": report.samples_lost}
    del facts["lost"]
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
