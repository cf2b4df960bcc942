"""Records that cannot be read, named by file and line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.converter.text.almost_typed import StaysText
from headrace.errors import BadArgumentError

_MOST_TOLD = 20  # of one error: enough to see a pattern
_MOST_KEPT = 1000  # of those left out: a list that a person reads, and memory that is bounded


@dataclass(frozen=True, slots=True, order=True)
class Refusal:
    """One record that is not read.

    Attributes:
        file: Place of its file among those read.
        line: Its first line in the file, from 1.
        name: The name of the file.
        why: What is wrong with it, and what was wanted.
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
        count: Records.
        first: The first of them, at most 1,000, in the order of files and lines.
        files: Files of other kinds in the folder, by name.
        untyped: Columns of CSV that stay text for the sake of a few values; these are not left
            out, but seldom what was meant.
        merged: Folders named as splits are, such as ``train`` and ``test``, whose records become
            one dataset; nothing of them is left out, either.
    """

    count: int = 0
    first: tuple[Refusal, ...] = ()
    files: tuple[str, ...] = ()
    untyped: tuple[StaysText, ...] = ()
    merged: tuple[str, ...] = ()


@dataclass(slots=True)
class Refusals:
    """Collects refusals, and raises them where they are not to be left out.

    Attributes:
        skip: Whether records are left out.
        count: Records so far.
        first: The first ones.
    """

    skip: bool
    count: int = 0
    first: list[Refusal] = field(default_factory=list)

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Take more, in any order.

        Raises:
            BadArgumentError: There are many by now, and they are not to be left out.
        """
        for refusal in refusals:
            self.count += 1
            if len(self.first) < _MOST_KEPT:
                self.first.append(refusal)
        if not self.skip and self.count >= _MOST_TOLD:
            self.raise_any()

    def raise_any(self) -> None:
        """Raise those there are, unless they are left out.

        Raises:
            BadArgumentError: There are some.
        """
        if self.count and not self.skip:
            raise refused(sorted(self.first), self.count)

    def left_out(
        self, files: Sequence[str], untyped: Sequence[StaysText], merged: Sequence[str]
    ) -> LeftOut:
        """Return what was left out, which columns stay text, and what became one dataset."""
        return LeftOut(
            self.count, tuple(sorted(self.first)), tuple(files), tuple(untyped), tuple(merged)
        )


def refused(refusals: Sequence[Refusal], count: int) -> BadArgumentError:
    """Return the error that lists them."""
    told = "; ".join(map(str, refusals[:_MOST_TOLD]))
    more = f"; and {count - _MOST_TOLD} more" if count > _MOST_TOLD else ""
    return BadArgumentError(
        f"{told}{more}. Nothing was written: correct the records, or leave them out with "
        "--on-error skip",
        field="SRC",
    )
