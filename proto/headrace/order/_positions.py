"""Which positions of an epoch there are."""

from __future__ import annotations

from typing import Final

from headrace.errors import BadArgumentError, PositionPastEndError

_EPOCH_LIMIT: Final = 1 << 62


def check_positions(epoch: int, start: int, stop: int, *, sample_count: int) -> None:
    """Refuse what are no positions of an epoch.

    Raises:
        BadArgumentError: If the epoch or the range is none.
        PositionPastEndError: If the range passes the end of the epoch.
    """
    if not 0 <= epoch < _EPOCH_LIMIT:
        raise BadArgumentError(f"epoch is {epoch}, must be in [0, 2**62)", field="epoch")
    if not 0 <= start <= stop:
        raise BadArgumentError(
            f"the positions [{start}, {stop}) are no range from 0 up", field="position"
        )
    if stop > sample_count:
        raise PositionPastEndError(
            f"positions up to {stop} were asked for, an epoch has {sample_count} samples",
            position=stop,
            sample_count=sample_count,
        )
