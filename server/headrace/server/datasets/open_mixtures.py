"""Keep open mixtures: each is made once for all ranks of a job."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from headrace.order import MixtureSpec, Skips
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.datasets.served_mixture import ServedMixture
from headrace.server.datasets.served_row_mixture import ServedRowMixture, only_rows
from headrace.server.datasets.served_rows import ServedRows
from headrace.server.plan.skip_lists import digest_of

# Each order takes up to about 100 MiB.
_MAX_MIXTURES = 16


class Mixtures:
    """The mixtures of open streams, shared by the ranks of a job; thread-safe."""

    def __init__(self) -> None:
        self._mixtures: OrderedDict[tuple[object, ...], ServedMixture | ServedRowMixture]
        self._mixtures = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self,
        spec: MixtureSpec,
        members: Sequence[ServedDataset | ServedRows],
        skips: Sequence[Skips | None],
    ) -> ServedMixture | ServedRowMixture:
        """Return the mixture of datasets for a spec and skips.

        Raises:
            BadArgumentError: The order is not possible, some members are rows and others are not,
                or rows differ in form.
        """
        filters = tuple(member.readable.stages for member in members)
        key = (spec.fingerprint, spec.digest, spec.order, tuple(map(digest_of, skips)), filters)
        with self._lock:
            found = self._mixtures.get(key)
            # A dataset that was reloaded is another object.
            if found is None or found.members != tuple(members):
                found = self._mixtures[key] = _made(spec, members, skips)
            self._mixtures.move_to_end(key)
            if len(self._mixtures) > _MAX_MIXTURES:
                self._mixtures.popitem(last=False)
        return found


def _made(
    spec: MixtureSpec,
    members: Sequence[ServedDataset | ServedRows],
    skips: Sequence[Skips | None],
) -> ServedMixture | ServedRowMixture:
    rows = only_rows(members)
    if rows:
        return ServedRowMixture(rows, spec, skips)
    return ServedMixture([member.base for member in members], spec, skips)
