"""Tests of docs/protocol.md: its example decodes what a server sends, its table is complete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace.errors
from headrace.errors import HeadraceError
from support.running import Running
from support.served import epoch_request, read

_PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()


def test_the_example_decodes_a_batch(served: Running, rich: pa.Table) -> None:
    """The page's code reads every column of a real batch."""
    code = _PAGE.split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - that is what is claimed
    request = epoch_request(dataset="rich", global_batch_size=50, with_ids=True)
    seen = read(served.channel, request)
    batch = seen.batches[1]

    columns = names["columns"](seen.start, batch.header, batch.payload)  # type: ignore[operator]  # a function of the page

    ids = columns["headrace.sample_id"][0].tolist()
    everything = rich.to_pydict()
    assert [everything["wide"][i] for i in ids] == columns["wide"][0].tolist()
    values, offsets, valid = columns["text"]
    texts = [
        values[a:b].tobytes().decode() if ok else None
        for a, b, ok in zip(offsets[:-1], offsets[1:], valid, strict=True)
    ]
    assert [everything["text"][i] for i in ids] == texts
    assert np.array_equal(columns["number"][0], ids)


def test_the_table_has_every_error_of_a_server() -> None:
    """Each reason that a server can send stands in the page with its code."""
    of_others = {
        "COMMIT_CONFLICT",
        "DATASET_EXISTS",
        "NOT_A_DATASET",
        "SERVER_UNREACHABLE",
        "STREAM_CORRUPT",
        "UNKNOWN",
        "WORLD",
    }
    errors = [
        error
        for error in vars(headrace.errors).values()
        if isinstance(error, type) and issubclass(error, HeadraceError)
    ]

    rows = [line for line in _PAGE.splitlines() if line.startswith("|")]
    missing = [
        error.reason
        for error in errors
        if error.reason not in of_others
        and not any(f"`{error.code}`" in row and f"`{error.reason}`" in row for row in rows)
    ]
    assert [] == missing
