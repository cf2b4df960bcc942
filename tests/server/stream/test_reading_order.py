"""The way of a batch through the server, as CONTRIBUTING.md gives it to read."""

from __future__ import annotations

from support.reading_order import SERVER

# Modules from a request to its first batch. Five of them hold what once stood in other modules:
# `stream.schedule` and `cache.needs` in the rooms of RPCs and of telemetry, which the trace leaves
# out; `plan.job_windows` and `plan.recent`, which all kinds of readings share, in
# `datasets.served_dataset`; and `stream.stage_plugs`, which asks the stages of a request and no
# others, in `datasets.catalog`. `layout.block_layout` chooses the columns that a batch is made of.
_MOST = 26


def test_contributing_lists_the_modules_of_a_batch_in_reading_order() -> None:
    """The list is what a real call enters, in the order in which it does, with compiled loops."""
    found = SERVER.trace()

    assert SERVER.listed() == found, "run PYTHONPATH=tests python -m support.reading_order"
    assert len(found) <= _MOST
