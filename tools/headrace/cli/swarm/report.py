"""Show the results of a load test as tables or as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.loadtest import Proof, Summary, TokenCheck

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The results of a load test.

    Attributes:
        summary: The rates and waiting times of the ranks.
        proof: Whether the ranks received the right samples.
        tokens: The results of resuming tokens.
        kills: The number of kills.
        limits: The limits that were missed, in words.
        failed_faults: Why faults could not be caused.
        interrupted: Whether the run was ended before its time.
    """

    summary: Summary
    proof: Proof
    tokens: TokenCheck
    kills: int
    limits: tuple[str, ...]
    failed_faults: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        """Return whether all samples arrived once and in order, with all faults, within limits."""
        problems = self.tokens.wrong or self.limits or self.summary.failed or self.failed_faults
        return self.proof.holds and bool(self.proof.batches) and not problems

    def as_json(self) -> str:
        """Return one JSON object."""
        found = {
            "passed": self.passed,
            **dataclasses.asdict(self.summary),
            "proof": {"holds": self.proof.holds, **dataclasses.asdict(self.proof)},
            "tokens": dataclasses.asdict(self.tokens),
            "kills": self.kills,
            "missed_limits": self.limits,
            "failed_faults": self.failed_faults,
            "interrupted": self.interrupted,
        }
        return json.dumps(found)

    def show(self) -> None:
        """Print tables to standard output."""
        from rich.console import Console  # noqa: PLC0415 - only for tables

        console = Console(highlight=False)
        console.print(_table("speed", _speed_rows(self.summary)))
        console.print(_table("proof", _proof_rows(self)))
        faults = [f"a fault could not be caused: {why}" for why in self.failed_faults]
        found = (*self.proof.examples, *self.tokens.examples, *self.summary.failed)
        for line in (*found, *self.limits, *faults):
            console.print(f"  {line}", markup=False, soft_wrap=True)
        verdict = "PASSED" if self.passed else "FAILED"
        console.print(f"{verdict} so far" if self.interrupted else verdict, style="bold")


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table("", "", title=title, title_justify="left", show_header=False)
    for row in rows:
        table.add_row(*row)
    return table


def _speed_rows(found: Summary) -> list[tuple[str, str]]:
    waits = "  ".join(f"{name} {value:,.2f}" for name, value in found.wait_ms.items())
    errors = ", ".join(f"{count} {reason}" for reason, count in found.errors.items())
    return [
        ("samples/s", f"{found.samples_per_s:,.0f}"),
        ("MiB/s", f"{found.mib_per_s:,.1f}"),
        ("batches/s", f"{found.batches_per_s:,.1f}"),
        (
            "first batch, ms",
            f"{found.first_batch_ms:,.1f} (worst {found.first_batch_worst_ms:,.1f})",
        ),
        ("wait for a batch, ms", waits or "no rank received a second batch"),
        ("time spent waiting", f"{found.stalled:.1%}"),
        ("slowest rank / fastest", f"{found.fairness:.2f}"),
        ("reconnects", f"{found.reconnects:,}{f' ({errors})' if errors else ''}"),
        ("ranks by transport", "; ".join(f"{n} {way}" for way, n in found.transports.items())),
        ("ranks that gave up", f"{len(found.failed):,}"),
        ("seconds", f"{found.elapsed_s:,.1f} ({found.reading_s:,.1f} reading)"),
    ]


def _proof_rows(report: LoadReport) -> list[tuple[str, str]]:
    proof, tokens = report.proof, report.tokens
    if proof.wanted_digest:
        samples = f"{proof.altered:,} batches with wrong samples or order"
        digest = f"{proof.digest}, expected {proof.wanted_digest}"
    else:
        samples = "not compared: give --manifest URL"
        digest = f"{proof.digest}, to compare with another run"
    rows = [
        ("compared", f"{proof.batches:,} batches, {proof.samples:,} samples"),
        ("lost, repeated", f"{proof.lost:,}, {proof.repeated:,} batches"),
        ("out of order, foreign", f"{proof.out_of_order:,}, {proof.foreign:,} batches"),
        ("samples", samples),
        (
            "epochs exactly once",
            f"{proof.epochs_whole:,} of {proof.epochs_complete:,}"
            if proof.epochs_complete
            else "no epoch was read completely, or its last samples were dropped",
        ),
        ("order digest", digest),
        ("tokens resumed", f"{tokens.tokens:,}, {tokens.wrong:,} of them wrong"),
    ]
    return rows if not report.kills else [*rows, ("processes killed", f"{report.kills:,}")]
