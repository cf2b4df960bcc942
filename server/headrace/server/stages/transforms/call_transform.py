"""The stage that calls a registered transform."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.errors import BadArgumentError, StageFailedError, TokenSpecChangedError
from headrace.payload import BFLOAT16, SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import Batch
from headrace.server.batch.stage import Columns, Context, Running, Stage
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.transforms.arrow_values import (
    arrow_batch,
    arrow_columns,
    arrow_field,
    arrow_values,
)
from headrace.server.stages.transforms.transform_config import TransformConfig
from headrace.server.stages.transforms.transform_pool import TransformPool
from headrace.v1 import transforms_pb2 as pb

# A batch is in memory as Arrow columns, as the serialized form, which grows by doubling, and as the
# bytes to send; an answer as received, as bytes, and as columns.
_COPIES = 4


class CallTransform(Stage):
    """Call an operator's function with all columns except the server's own."""

    runs_ahead = False

    def __init__(self, message: pb.Transform, pool: TransformPool) -> None:
        self._config = wanted_transform(message, pool)
        self._pool = pool
        self._schema = pa.schema([])

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        """Return the columns that the function makes, by calling it with a batch without rows.

        Raises:
            BadArgumentError: A column has a type that cannot be passed to the function.
            StageFailedError: It fails for that batch, or returns columns that cannot be sent.
        """
        own = [column for name, column in before.items() if name != SAMPLE_ID_COLUMN]
        for column in own:
            if column.dtype == BFLOAT16:
                raise BadArgumentError(
                    f"transform: column {column.name!r} is bfloat16, which Arrow does not have; "
                    "request another dtype in Normalize",
                    field="stages",
                )
        schema = pa.schema([arrow_field(column) for column in own])
        self._schema = self._pool.schema(self._config.name, schema)
        made = {each.name: each for each in arrow_columns(self._schema, title=self._config.title)}
        if SAMPLE_ID_COLUMN in before:
            made[SAMPLE_ID_COLUMN] = before[SAMPLE_ID_COLUMN]
        return made

    def run(self, batch: Batch, context: Context) -> Running[Batch]:
        columns = dict(batch.columns)
        sent = _COPIES * sum(each.nbytes for each in columns.values())
        context.claim(sent)
        ids = columns.pop(SAMPLE_ID_COLUMN, None)
        keys = pa.array(batch.keys, pa.uint64())
        made = yield from self._pool.run(
            self._config.name,
            arrow_batch(columns),
            keys,
            claim=lambda size: context.claim(sent + _COPIES * size),
        )
        if not made.schema.equals(self._schema):
            raise StageFailedError(
                f"the transform {self._config.title} returned the columns {_text(made.schema)}, "
                f"but {_text(self._schema)} for a batch without rows; it must always return the "
                "same columns",
                transform=self._config.title,
            )
        found = arrow_values(made)
        if ids is not None:
            found[SAMPLE_ID_COLUMN] = ids
        return replace(batch, columns=found)


def wanted_transform(message: pb.Transform, pool: TransformPool) -> TransformConfig:
    """Return the transform of a stage.

    Raises:
        BadArgumentError: There is no transform of that name.
        TokenSpecChangedError: It has another version than the requested one.
    """
    config = pool.config(message.name)
    if message.version not in {"", config.version}:
        raise TokenSpecChangedError(
            f"the transform {message.name} has version {config.version} here, but "
            f"{message.version[:100]!r} is requested; ask a server that has it",
            field="stages",
        )
    return config


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
