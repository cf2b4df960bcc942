"""From what ranks wrote to an answer of the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from exam.judge import Difference

Kind = Literal[
    "read",
    "refused",
    "failed",
    "hung",
    "not offered",
    "not asked",
    "no server",
    "undisturbed runs differ",
]
Lines = Sequence[Sequence[dict[str, Any]]]

_COUNTS = ("lost", "repeated", "new", "altered")
_MESSAGE = 300  # characters that are kept of what a library says; tracebacks follow in some
_ACCIDENTS = {
    *("AttributeError", "IndexError", "KeyError", "NameError", "RecursionError", "StopIteration"),
    *("TypeError", "UnboundLocalError", "ZeroDivisionError"),
}
"""Errors that nobody raises to tell a user something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a question.

    Attributes:
        kind: Whether there is something to compare, and if not, why.
        difference: From the undisturbed run, where something was read.
        message: What the library said, or why it is not offered.
        first_s: Seconds from opening to the first batch, of the slowest rank; 0 if unknown.
    """

    kind: Kind
    difference: Difference | None = None
    message: str = ""
    first_s: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether the model saw what it would have seen undisturbed."""
        found = self.difference
        return found is not None and found.same_samples and found.same_order

    @property
    def text(self) -> str:
        """The cell of the matrix."""
        found = self.difference
        if found is None:
            return self.kind
        parts = [f"{count:,} {what}" for what, count in _counted(found).items() if count]
        if parts:
            return ", ".join(parts)
        return "same" if found.same_order else "other order"

    def to_json(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Read it from a file."""
        known = {name: fields[name] for name in ("kind", "message", "first_s")}
        found = fields["difference"]
        return cls(**known, difference=Difference(**found) if found else None)


def together(answers: Sequence[Answer]) -> str:
    """Return the cell of a question that several runs were asked, in which they may differ.

    What depends on the moment of a kill differs, so counts become ranges, and the rest is said to
    be so sometimes.
    """
    texts = list(dict.fromkeys(answer.text for answer in answers))
    if len(texts) == 1:
        return texts[0]
    found = [answer.difference for answer in answers if answer.difference is not None]
    parts = []
    for what in _COUNTS:
        counts = [_counted(each)[what] for each in found]
        if max(counts, default=0):
            spread = f"{min(counts):,} to {max(counts):,}"
            parts.append(f"{spread if len({*counts}) > 1 else f'{counts[0]:,}'} {what}")
    if len(found) == len(answers) and parts:
        return ", ".join(parts)
    return ", ".join(f"sometimes {text}" for text in texts)


def _counted(found: Difference) -> dict[str, int]:
    return {what: getattr(found, what) for what in _COUNTS}


def stopped(lines: Lines, *, hung: bool, errors_refuse: bool = False) -> Answer | None:
    """Return the answer of a run that did not come to its end, or None of one that did."""
    answer = complaint(lines, hung=hung, errors_refuse=errors_refuse)
    if answer is None and not all(rank and "ended" in rank[-1] for rank in lines):
        return Answer(kind="failed", message="a rank died without a message")
    return answer


def complaint(lines: Lines, *, hung: bool, errors_refuse: bool = False) -> Answer | None:
    """Return the answer of a run that hung, or in which a rank said why it stopped.

    Args:
        lines: What each rank wrote.
        hung: Whether one of them said nothing for a minute.
        errors_refuse: Whether an error after the first batch is a refusal too, because only there
            can it be found.
    """
    for rank in lines:
        last = rank[-1] if rank else {}
        if "not_offered" in last:
            return Answer(kind="not offered", message=last["not_offered"])
        if "error" in last:
            is_early = errors_refuse or not any("ids" in line for line in rank)
            is_meant = last["error"] not in _ACCIDENTS and bool(last["message"])
            text = _said(f"{last['error']}: {last['message']}")[:_MESSAGE]
            return Answer(kind="refused" if is_early and is_meant else "failed", message=text)
    if hung:
        return Answer(kind="hung", message=f"no batch any more after {_batches(lines)} batches")
    return None


def first_batch_s(lines: Lines) -> float:
    """Return the seconds until every rank had its first batch."""
    firsts = [next((line["at"] for line in rank if "ids" in line), 0.0) for rank in lines]
    return max(firsts, default=0.0)


def _said(message: str) -> str:
    """Return what a worker said, without the traceback that torch puts before it."""
    lines = message.splitlines()
    traced = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    if not traced:
        return message
    said = [line for line in lines[traced[-1] :] if not line.startswith(" ")]
    return "\n".join(said) or message


def _batches(lines: Lines) -> int:
    return sum("ids" in line for rank in lines for line in rank)
