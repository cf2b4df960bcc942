"""What a user's function yields is written whole, however it comes."""

from __future__ import annotations

import pyarrow as pa

from headrace.converter.samples.function import FunctionPlan, run_function

_SCHEMA = pa.schema([("id", pa.int64())])


def _batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())}, schema=_SCHEMA)


def _ids(*batches: pa.RecordBatch) -> list[object]:
    plan = FunctionPlan(lambda given: given, "arrow", _SCHEMA)
    return [
        sample
        for batch in run_function(plan, iter(batches), partition=0)
        for sample in batch["id"].to_pylist()
    ]


def test_a_function_may_filter_everything_out() -> None:
    """Batches without rows, as a filter yields them, are no failure."""
    assert [] == _ids(_batch(), _batch())
    assert [1, 2] == _ids(_batch(), _batch(1), _batch(), _batch(2), _batch())
