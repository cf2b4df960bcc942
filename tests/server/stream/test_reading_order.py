"""Claims about the way of a batch through the server."""

from __future__ import annotations

from support.reading_order import listed, traced

# It may fall, and never rise; 20 are the aim.
_MOST_MODULES = 28


def test_contributing_lists_the_modules_of_a_batch_in_reading_order() -> None:
    """A real call enters just the modules that the page lists, and few of them."""
    found = traced()

    assert listed() == found, "run PYTHONPATH=tests python -m support.reading_order"
    assert len(found) <= _MOST_MODULES
