"""An exercise: a stage that negates a column, as a folder that a server finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from prometheus_client import Counter

from headrace.errors import BadArgumentError, StageFailedError
from headrace.server.batch.batch_values import Batch
from headrace.server.batch.stage import Columns, ColumnStage, Work, wanted_column
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.settings.plug_settings import PlugSettings
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.stage_plugs import StageKind, StagePlug
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb
from server.stages.exercise.negate_stage import NegateOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class NegateSettings(PlugSettings):
    """The settings of the stage.

    Attributes:
        negate_wraps: Whether a number whose opposite is too large stays as it is.
    """

    negate_wraps: bool = False


class Negate(ColumnStage):
    """Change the sign of the numbers of a column.

    Args:
        name: The column.
        negated: Counts numbers.
        wraps: Whether a number whose opposite is too large stays as it is.
    """

    def __init__(self, name: str, negated: Counter, *, wraps: bool) -> None:
        self._name = name
        self._negated = negated
        self._wraps = wraps

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        """Return the same columns, if the one has a sign."""
        column = wanted_column(before, self._name, "negate", (pb.COLUMN_KIND_TENSOR,))
        if column.dtype.kind not in "if":
            raise BadArgumentError(
                f"negate: column {self._name!r} is {column.dtype.name}, which has no sign; cast it "
                "first",
                field="stages",
            )
        return dict(before)

    def cost(self, batch: Batch) -> int:
        """Return the bytes of the column."""
        return batch.columns[self._name].values.nbytes

    def work(self, batch: Batch) -> Work[Batch]:
        """Negate the column."""
        found = batch.columns[self._name]
        values: Any = found.values
        is_checked = values.dtype.kind == "i" and not self._wraps
        if is_checked and (values == np.iinfo(values.dtype).min).any():
            row = int(values.argmin())
            raise StageFailedError(
                f"negate: row {row} of column {self._name!r} is {values.min()}, whose opposite is "
                "too large; cast it first",
                column=self._name,
                row=row,
            )
        yield
        self._negated.inc(values.size)
        return replace(batch, columns={**batch.columns, self._name: replace(found, values=-values)})


class Plug(StagePlug):
    """The stage of a server."""

    settings = NegateSettings

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        negated = Counter("negated_total", "Numbers that were negated.", registry=metrics.registry)
        wraps = config.of_plug(NegateSettings).negate_wraps
        self.kinds = (
            StageKind[Any](
                "negate",
                NegateOptions,
                lambda options, _: Negate(options.column, negated, wraps=wraps),
                title=lambda options: f"negate@1-{options.column}",
            ),
        )
