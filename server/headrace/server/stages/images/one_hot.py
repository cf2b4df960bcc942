"""Turn class indices into vectors with 1 at the index and 0 elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, StageFailedError
from headrace.server.batch.batch_values import Batch, Values
from headrace.server.batch.stage import Columns, ColumnStage, Work, tensor_of, wanted_column
from headrace.server.layout.wire_columns import WireColumn
from headrace.v1 import shard_service_pb2 as pb

FLOAT32 = np.dtype("<f4")
_CLASS_LIMIT = 1 << 16


class OneHot(ColumnStage):
    """Turn a column of class indices into a float32 tensor.

    Args:
        stage: The name of the stage, for errors.
        name: The column.
        class_count: The number of classes; 0 for the number of named classes.
        class_counts: The number of named classes by column.

    Raises:
        BadArgumentError: The number of classes is unknown.
    """

    def __init__(
        self, stage: str, name: str, class_count: int, class_counts: Mapping[str, int]
    ) -> None:
        self._stage = stage
        self._name = name
        self._class_count = class_count or class_counts.get(name, 0)
        if not self._class_count:
            raise BadArgumentError(
                f"{stage}: the dataset has no class names for column {name!r}; give the number of "
                "classes as num_classes",
                field="stages",
            )
        if not 1 <= self._class_count <= _CLASS_LIMIT:
            raise BadArgumentError(
                f"{stage}: there are {self._class_count} classes; it must be in "
                f"[1, {_CLASS_LIMIT}]",
                field="stages",
            )

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        column = wanted_column(before, self._name, self._stage, (pb.COLUMN_KIND_TENSOR,))
        if column.item_shape or column.dtype.kind not in "iu":
            raise BadArgumentError(
                f"{self._stage}: column {self._name!r} is a tensor of {column.dtype.name} with "
                f"shape {column.item_shape}; it must have one integer per row",
                field="stages",
            )
        return {**before, self._name: self._made(column)}

    def cost(self, batch: Batch) -> int:
        return batch.row_count * (self._class_count * FLOAT32.itemsize + 64)

    def work(self, batch: Batch) -> Work[Batch]:
        found = batch.columns[self._name]
        made = Values(self._made(found.column), self.vectors(found), None, found.valid)
        yield
        return replace(batch, columns={**batch.columns, self._name: made})

    def vectors(self, found: Values) -> NDArray[np.float32]:
        """Return the vector of each index, ``(rows, classes) float32``.

        Raises:
            StageFailedError: A value is not the index of a class.
        """
        is_there = np.ones(len(found.values), np.bool_) if found.valid is None else found.valid != 0
        indices = np.where(is_there, found.values, found.values.dtype.type(0))
        wrong = (indices < 0) | (indices >= self._class_count)
        if wrong.any():
            row = int(wrong.argmax())
            raise StageFailedError(
                f"{self._stage}: row {row} of column {self._name!r} is {indices[row]}; it must be "
                f"in [0, {self._class_count}), the indices of the classes",
                column=self._name,
                row=row,
            )
        made = np.zeros((indices.size, self._class_count), FLOAT32)
        made[np.arange(indices.size), indices.astype(np.int64)] = is_there
        return made

    def _made(self, column: WireColumn) -> WireColumn:
        made = tensor_of(column, (self._class_count,))
        return replace(made, element_type=pb.ELEMENT_TYPE_FLOAT32, dtype=FLOAT32, logical_type="")
