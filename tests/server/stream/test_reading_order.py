"""The way of a batch through the server, as CONTRIBUTING.md gives it to read."""

from __future__ import annotations

from support.reading_order import SERVER

# Modules from a request to its first batch.
_MOST = 23


def test_contributing_lists_the_modules_of_a_batch_in_reading_order() -> None:
    """The list is what a real call enters, in the order in which it does, with compiled loops."""
    found = SERVER.trace()

    assert SERVER.listed() == found, "run PYTHONPATH=tests python -m support.reading_order"
    assert len(found) <= _MOST
