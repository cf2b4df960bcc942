"""Records that cannot be read, named by file and line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.converter.text.almost_typed import StaysText
from headrace.errors import BadArgumentError

_MOST_TOLD = 20  # records in an error: enough to see a pattern
_MOST_KEPT = 1000  # records in the list of those left out, which people read; bounds memory


@dataclass(frozen=True, slots=True, order=True)
class Refusal:
    """One record that cannot be read.

    Attributes:
        file: Number of its file among those read.
        line: Its first line in the file, counted from 1.
        name: The name of the file.
        why: What is wrong with it, and what was expected.
    """

    file: int
    line: int
    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}:{self.line}: {self.why}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a conversion has left out.

    Attributes:
        count: Number of records.
        first: The first of these records, at most 1,000, in the order of files and lines.
        files: Names of files of other kinds in the folder.
        untyped: CSV columns that stay text because of a few values. They are not left out, but
            this is seldom intended.
        merged: Folders with names of splits, such as ``train`` and ``test``, whose records become
            one dataset. They are not left out either.
    """

    count: int = 0
    first: tuple[Refusal, ...] = ()
    files: tuple[str, ...] = ()
    untyped: tuple[StaysText, ...] = ()
    merged: tuple[str, ...] = ()


@dataclass(slots=True)
class Refusals:
    """Collects refusals, and raises them unless such records are left out.

    Attributes:
        skip: Whether records are left out.
        count: Number of refusals so far.
        first: The first refusals.
    """

    skip: bool
    count: int = 0
    first: list[Refusal] = field(default_factory=list)

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Add refusals, in any order.

        Raises:
            BadArgumentError: There are many by now, and they are not left out.
        """
        for refusal in refusals:
            self.count += 1
            if len(self.first) < _MOST_KEPT:
                self.first.append(refusal)
        if not self.skip and self.count >= _MOST_TOLD:
            self.raise_any()

    def raise_any(self) -> None:
        """Raise the refusals so far, unless such records are left out.

        Raises:
            BadArgumentError: There are refusals.
        """
        if self.count and not self.skip:
            raise refused(sorted(self.first), self.count)

    def left_out(
        self, files: Sequence[str], untyped: Sequence[StaysText], merged: Sequence[str]
    ) -> LeftOut:
        """Return what was left out, and what to warn about."""
        return LeftOut(
            self.count, tuple(sorted(self.first)), tuple(files), tuple(untyped), tuple(merged)
        )


def refused(refusals: Sequence[Refusal], count: int) -> BadArgumentError:
    """Return an error that lists refusals."""
    told = "; ".join(map(str, refusals[:_MOST_TOLD]))
    more = f"; and {count - _MOST_TOLD} more" if count > _MOST_TOLD else ""
    return BadArgumentError(
        f"{told}{more}. Nothing was written: correct the records or --type, or leave the records "
        "out with --on-error skip",
        field="SRC",
    )
