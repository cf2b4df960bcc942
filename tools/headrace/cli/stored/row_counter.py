"""Count packed rows, with the server's compiled loop if it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.order.packing import Packing, best_fit, group_row_count

if TYPE_CHECKING:
    from headrace.storage import RowOptions


def row_counter() -> Callable[[NDArray[np.int64], RowOptions], int]:
    """Return the function that counts rows for `headrace.storage.index_packing`."""
    try:
        from headrace.server.order_stages.packing.packed_rows import fit  # noqa: PLC0415 - the [server] extra
    except ModuleNotFoundError:
        fit = best_fit

    def count_rows(lengths: NDArray[np.int64], options: RowOptions) -> int:
        packing = Packing(options.length, options.cut, options.marks)
        return group_row_count(lengths, packing, fit=fit)

    return count_rows
