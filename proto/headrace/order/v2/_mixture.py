"""Mixtures of order version 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order._mixture_order import AnyMixtureOrder, drawn_datasets
from headrace.order._schedule import Schedule
from headrace.order._spec import OrderSpec
from headrace.order._table import ShardTable
from headrace.order.v2._members import Members

_Array: TypeAlias = NDArray[np.int64]

# Passes of a dataset in an epoch that are looked through one by one, which takes milliseconds each.
_MOST_PASSES: Final = 1 << 12
# Weights of a schedule are compared as parts of a number of this many bits.
_PART_BITS: Final = 20


class MixtureOrder(AnyMixtureOrder):
    """The order of a mixture; safe to call from several threads.

    Args:
        spec: The options.
        tables: The shards of each dataset, in the order of `spec.datasets`.
        skips: Samples to leave out of each dataset; others of their runs come in their place.

    Raises:
        BadArgumentError: If the tables do not fit the spec, an empty dataset is drawn from, or all
            that is drawn from a dataset is skipped.
    """

    _members: Members

    def find(self, epoch: int, sample_id: int) -> _Array:
        """Return all positions of an epoch at which a sample comes, as a substitute too.

        Args:
            epoch: In [0, 2**62 / `sample_count`).
            sample_id: The sample's id in the mixture, in [0, samples of all datasets).

        Returns:
            (n,) int64, rising; empty if the epoch does not draw the sample or it is skipped.

        Raises:
            BadArgumentError: If the epoch is none or no dataset has the sample.
        """
        self._check_positions(epoch, 0, 0)
        if not 0 <= sample_id < self.first_ids[-1]:
            raise BadArgumentError(
                f"sample id {sample_id} is none of the mixture, whose datasets have"
                f" {int(self.first_ids[-1])} samples",
                field="sample_ids",
            )
        dataset = int(np.searchsorted(self.first_ids, sample_id, side="right")) - 1
        own = sample_id - int(self.first_ids[dataset])
        samples = int(self.first_ids[dataset + 1]) - int(self.first_ids[dataset])
        draws = int(self._draws[dataset]) if self._schedule is None else self.sample_count
        if draws > _MOST_PASSES * samples:
            raise BadArgumentError(
                f"an epoch of {self.sample_count} draws may draw sample {own} of dataset"
                f" {self.spec.datasets[dataset].name} {-(-draws // samples)} times; it is found if"
                f" that is at most {_MOST_PASSES}",
                field="sample_ids",
            )
        found = [
            self._find_in_lane(epoch, lane, dataset, own) for lane in range(self.spec.order.lanes)
        ]
        return np.sort(np.concatenate(found))

    def find_each(self, epoch: int, sample_ids: _Array) -> list[_Array]:
        """Return for each of some samples what `find` returns; args and errors are its own."""
        return [self.find(epoch, sample_id) for sample_id in sample_ids.tolist()]

    def runs_of(self, sample_ids: _Array) -> tuple[_Array, _Array]:
        """Return the first sample of each one's run, and the one after its last, in the mixture."""
        return self._members.runs_of(sample_ids)

    @property
    def memory_samples(self) -> _Array:
        """Samples of each dataset that are shuffled together in a lane: (datasets,) int64."""
        return self._members.memories.copy()

    def _find_in_lane(self, epoch: int, lane: int, dataset: int, sample_id: int) -> _Array:
        def find(start: int, stop: int) -> _Array:
            return self._members.draws_of(dataset, sample_id, lane, start, stop)

        return self._positions_of(epoch, lane, dataset, find)

    def _make_members(self, tables: Sequence[ShardTable]) -> Members:
        choice = self._choose(tables)
        used = tables if choice is None else choice.tables
        return Members(
            self.spec.order,
            tables,
            memories=memories(self.spec.order, used, self._draws, self.spec.weights()),
            first_ids=self.first_ids,
            choice=choice,
            skips=self.skips,
            titles=[dataset.name for dataset in self.spec.datasets],
            drawn=drawn_datasets(self.spec, self._draws),
        )


def memories(
    spec: OrderSpec, tables: Sequence[ShardTable], draws: _Array, schedule: Schedule | None
) -> _Array:
    """Return how many samples of each dataset are shuffled together: (datasets,) int64, >= 1.

    The limits hold for all datasets together, and each has the part of them that it has of the
    draws.

    Args:
        spec: The options.
        tables: The datasets.
        draws: (datasets,) int64, draws of an epoch, if no schedule rules.
        schedule: Weights, if they rule; of each dataset the greatest counts.
    """
    weights = draws.tolist() if schedule is None else _greatest(schedule).tolist()
    counts = [table.sample_count for table in tables]
    total = sum(weights)
    raw = sum(
        weight * int(table.raw_bytes.sum()) // max(count, 1)
        for weight, table, count in zip(weights, tables, counts, strict=True)
    )
    limits = [spec.shuffle_bytes * total // max(raw, 1)] if spec.shuffle_bytes else []
    limits += [spec.shuffle_samples] if spec.shuffle_samples else []
    if not limits:
        return np.maximum(np.array(counts, np.int64), 1)
    return np.array(
        [
            max(min(min(limits) * weight // max(total, 1), count), 1)
            for weight, count in zip(weights, counts, strict=True)
        ],
        np.int64,
    )


def _greatest(schedule: Schedule) -> _Array:
    # Of each dataset its greatest part of the weights in any piece.
    parts = np.zeros(schedule.weights.shape[1], np.int64)
    for piece in range(len(schedule.starts)):
        sums = schedule.shares(piece)
        weights = np.diff(sums)
        own = (weights << _PART_BITS) // sums[-1]
        np.maximum(parts, np.maximum(own, weights > 0), out=parts)
    return parts
