"""Replace damaged samples by others, as specified in docs/order.md.

Contract:

1. The substitute for a sample depends on the sample, the epoch, the skips and which samples are
   damaged, but not on the world size or on when damage was found.
2. A sample whose first `MOST_TRIES` substitutes are damaged too is an error.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

import numpy as np

from headrace.errors import BadArgumentError, StageFailedError
from headrace.server.batch.stage import Replacement
from headrace.server.plan.find_samples import DatasetFinder
from headrace.server.plan.planned_batches import PlannedBatch

_log = logging.getLogger(__name__)

MOST_TRIES: Final = 16
"""The most substitutes to try for a sample."""


class Substitutes:
    """Replace damaged samples of planned batches, according to the contract above.

    Args:
        finder: The finder of the stream's samples.
        replacement: How samples are replaced.
        title: The stream's name in the log.
    """

    def __init__(self, finder: DatasetFinder, replacement: Replacement, *, title: str) -> None:
        self._finder = finder
        self._replacement = replacement
        self._use = replacement.use.encode()
        self._title = title

    def known(self) -> set[int]:
        """Return the samples known to be damaged."""
        return set(self._finder.damaged.known(self._use))

    def note(self, planned: PlannedBatch, rows: Collection[int], known: set[int]) -> None:
        """Note that rows of a batch are damaged.

        Args:
            planned: The batch.
            rows: The damaged rows.
            known: The known damaged samples, extended by the call.
        """
        found = set(planned.found.item_ids[sorted(rows)].tolist())
        for sample_id in sorted(found - self._finder.damaged.known(self._use)):
            _log.warning(
                "%s of the %s; other samples take its place",
                self._replacement.failure.format(sample_id),
                self._title,
            )
        known |= found
        self._finder.damaged.add(self._use, found)

    def replaced(self, planned: PlannedBatch, known: Collection[int]) -> PlannedBatch:
        """Return a batch with other samples in place of damaged ones.

        Args:
            planned: The planned batch.
            known: The samples that are damaged.

        Raises:
            StageFailedError: There are no other samples, or they are damaged too.
        """
        if not known:
            return planned
        sample_ids = planned.found.item_ids
        is_damaged = np.array([each in known for each in sample_ids.tolist()], np.bool_)
        if not is_damaged.any():
            return planned
        filled = sample_ids.copy()
        for row in np.flatnonzero(is_damaged).tolist():
            filled[row] = self._substitute(planned.epoch, int(sample_ids[row]), known)
        own = planned.sample_count - len(planned.part.pad_positions)
        return planned._replace(
            found=self._finder.found(filled), damaged=sample_ids[:own][is_damaged[:own]]
        )

    def _substitute(self, epoch: int, sample_id: int, known: Collection[int]) -> int:
        damaged = [sample_id]
        try:
            while damaged[-1] in known and len(damaged) <= MOST_TRIES:
                damaged.append(self._finder.substitute(epoch, damaged))
        except BadArgumentError:
            why = "there is no other sample"
        else:
            if damaged[-1] not in known:
                return damaged[-1]
            why = f"neither can {MOST_TRIES} samples that would take its place"
        raise StageFailedError(
            f"{self._replacement.failure.format(sample_id)}, and {why}; {self._replacement.advice}",
            sample_id=sample_id,
        )
