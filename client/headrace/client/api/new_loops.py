"""Where a new loop over a dataset starts.

A loop of the user's continues where the last one was left, since a `break` in an epoch is as good
a place to stop as its end. To a framework, each loop is an epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from headrace.client.frameworks.lightning import LightningLoop, lightning_loop
from headrace.client.loader.progress import LoopProgress

_log = logging.getLogger(__name__)


class _Stateful(Protocol):
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Move to a place."""


class NewLoops:
    """Says of each new loop whether it starts the next epoch; warns once of what may surprise."""

    def __init__(self, name: str) -> None:
        """Watch the loops over one dataset.

        Args:
            name: What messages call the dataset.
        """
        self._name = name
        self._has_warned = False

    def leave_epoch(
        self,
        progress: LoopProgress,
        dataset: _Stateful | None = None,
    ) -> bool:
        """Return whether the loop that starts now leaves the rest of the current epoch out.

        Args:
            progress: Of the loops over the dataset.
            dataset: What gets its state if Lightning resumes and has not loaded it.
        """
        place = progress.place
        if place.position == 0 and place.epoch > 0:
            return False
        loop = lightning_loop()
        if loop is None:
            if progress.is_left:
                self._warn(_CONTINUED, self._name, place.epoch, place.position, place.epoch + 1)
            return False
        if not progress.has_begun and place.position == 0:
            state = loop.unloaded_state(dataset) if loop.step else None
            if dataset is not None and state is not None:
                dataset.load_state_dict(state)
                return progress.place.position > 0 and _has_ended(loop)
            if loop.step:
                self._warn(_FORGOTTEN, loop.step, self._name)
            return False
        return progress.is_left or (_has_ended(loop) and not progress.was_read)

    def _warn(self, message: str, *values: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(message, *values)


def _has_ended(loop: LightningLoop) -> bool:
    """Return whether Lightning had ended its epoch when it saved the state that was loaded."""
    return loop.is_training and loop.epoch > 0 and loop.batch == 0


_CONTINUED = (
    "this loop over %r continues in the middle of epoch %d, at position %d, since the last one was "
    "left early: give epochs='same' to read the same epoch in each loop, as for validation, or "
    "call seek(%d) to begin the next epoch. This is said once"
)
_FORGOTTEN = (
    "Lightning continues after step %d, but %r starts at epoch 0: its state was not loaded. A "
    "DataLoader has no state in Lightning's checkpoints; give Lightning the dataset itself or a "
    "headrace.client.BatchLoader as its loader, which have"
)
