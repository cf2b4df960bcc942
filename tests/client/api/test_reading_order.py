"""The way of a batch through the client, as CONTRIBUTING.md gives it to read."""

from __future__ import annotations

from support.reading_order import CLIENT

# Modules of an epoch of one batch.
_MOST = 23


def test_contributing_lists_the_modules_of_a_batch() -> None:
    """The list is what a real loop enters; two threads enter them, so the order may differ."""
    found = CLIENT.trace()

    assert sorted(CLIENT.listed()) == sorted(found), (
        "run PYTHONPATH=tests python -m support.reading_order"
    )
    assert len(found) <= _MOST
