"""Pack documents of different lengths into rows of one length, group by group.

This is pure arithmetic over lengths; ``docs/order.md`` specifies it. A group is a stretch of
neighbouring documents whose row count never changes, so a row is found by packing its group alone.
"""

from headrace.order.packing.best_fit import Fit, Placement, best_fit
from headrace.order.packing.group import (
    PackedGroup,
    group_row_count,
    pack_group,
)
from headrace.order.packing.options import MAX_ROW_LENGTH, Packing
from headrace.order.packing.rows import PackedRows, packing_key, pass_packing_key, shared_groups
from headrace.order.packing.take import Take, take_pieces

__all__ = [
    "MAX_ROW_LENGTH",
    "Fit",
    "PackedGroup",
    "PackedRows",
    "Packing",
    "Placement",
    "Take",
    "best_fit",
    "group_row_count",
    "pack_group",
    "packing_key",
    "pass_packing_key",
    "shared_groups",
    "take_pieces",
]
