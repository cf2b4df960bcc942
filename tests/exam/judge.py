"""Compare what a disturbed run gave with an undisturbed one, by ids: no library is known here.

A run is its global batches: the samples that all ranks together got at a step, whatever their order
within the step, since one gradient is made of them. Where batch sizes differ, runs are compared
wherever both have given equally many samples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """What all ranks got at one step.

    Attributes:
        epoch: Counted from 0.
        step: Since the run began, from 1 on.
        ids: Of all samples, in no order.
        altered: How many of them had other bytes than were written.
    """

    epoch: int
    step: int
    ids: tuple[int, ...]
    altered: int = 0


Run = Sequence[Step]


@dataclass(frozen=True, slots=True)
class Difference:
    """What was found, against what there should be.

    Attributes:
        lost: Samples that an epoch should have and has not.
        repeated: Samples that an epoch has more often than it should.
        new: Samples that no epoch should have, as those that were appended.
        altered: Samples with other bytes.
        same_order: Whether each global batch has the samples that it should.
    """

    lost: int = 0
    repeated: int = 0
    new: int = 0
    altered: int = 0
    same_order: bool = True

    @property
    def same_samples(self) -> bool:
        """Whether every epoch has what it should, in whatever order."""
        return not (self.lost or self.repeated or self.new or self.altered)


def joined(logs: Iterable[Iterable[Mapping[str, Any]]]) -> list[Step]:
    """Return the steps of a run from the lines that each rank wrote."""
    found: dict[tuple[int, int], tuple[list[int], int]] = {}
    for lines in logs:
        for line in lines:
            if "ids" in line:
                ids, altered = found.get((line["epoch"], line["step"]), ([], 0))
                found[line["epoch"], line["step"]] = (ids + line["ids"], altered + line["altered"])
    return [Step(*key, tuple(ids), altered) for key, (ids, altered) in sorted(found.items())]


def resumed(before: Run, step: int, after: Run) -> list[Step]:
    """Return what a model saw that was trained up to a step, and from its checkpoint on."""
    return [*(each for each in before if each.step <= step), *after]


def compare(undisturbed: Run, found: Run) -> Difference:
    """Compare a run with the one that it should be, epoch by epoch and step by step."""
    wanted, had = _by_epoch(undisturbed), _by_epoch(found)
    epochs = wanted.keys() | had.keys()
    known = {sample for samples in wanted.values() for sample in samples}
    more = sum((had[epoch] - wanted[epoch] for epoch in epochs), Counter[int]())
    return Difference(
        lost=sum((wanted[epoch] - had[epoch]).total() for epoch in epochs),
        repeated=sum(count for sample, count in more.items() if sample in known),
        new=sum(count for sample, count in more.items() if sample not in known),
        altered=sum(step.altered for step in found),
        same_order=_blocks_agree(undisturbed, found),
    )


def complete(sample_ids: Iterable[int], epochs: int, run: Run) -> Difference:
    """Compare a run with every sample once an epoch, in any order."""
    every = tuple(sample_ids)
    return compare([Step(epoch, epoch + 1, every) for epoch in range(epochs)], run)


def _by_epoch(run: Run) -> defaultdict[int, Counter[int]]:
    found: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for step in run:
        found[step.epoch].update(step.ids)
    return found


def _blocks_agree(left: Run, right: Run) -> bool:
    lefts, rights = _ends(left), _ends(right)
    if lefts[-1] != rights[-1]:
        return False
    met = sorted({*lefts} & {*rights})
    one, other = _ids(left), _ids(right)
    return all(Counter(one[start:end]) == Counter(other[start:end]) for start, end in pairwise(met))


def _ends(run: Run) -> list[int]:
    return [*accumulate((len(step.ids) for step in run), initial=0)]


def _ids(run: Run) -> list[int]:
    return [each for step in run for each in step.ids]
