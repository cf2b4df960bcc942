"""Packing: documents of different lengths into rows of one length, group by group.

Pure arithmetic over lengths; ``docs/order.md`` specifies it. A group is a stretch of neighbouring
documents whose row count never changes, so any row is found by packing its group alone.
"""

from headrace.order.packing.best_fit import Fit, Fitted, best_fit
from headrace.order.packing.group import (
    PackedGroup,
    group_row_count,
    pack_group,
)
from headrace.order.packing.options import MAX_ROW_LENGTH, Packing
from headrace.order.packing.rows import PackedRows, Pieces, packing_key

__all__ = [
    "MAX_ROW_LENGTH",
    "Fit",
    "Fitted",
    "PackedGroup",
    "PackedRows",
    "Packing",
    "Pieces",
    "best_fit",
    "group_row_count",
    "pack_group",
    "packing_key",
]
