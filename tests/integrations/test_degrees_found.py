"""What the exam of frameworks says of runs, and that the page says what was found."""

from __future__ import annotations

import json

from integrations.degrees.asked import answer
from integrations.degrees.page import written
from integrations.degrees.runs import Seen
from integrations.printed import PAGES


def _seen(batches: dict[int, list[int]], said: str = "", *, hung: bool = False) -> Seen:
    """What two ranks saw, in epochs of two steps."""
    steps = {
        step: [(step // 2, ids[:1], 0.5), (step // 2, ids[1:], 0.25)]
        for step, ids in batches.items()
    }
    return Seen(steps, not said and not hung, hung, said)


WHOLE = [_seen({0: [1, 2], 1: [3, 4], 2: [4, 1], 3: [2, 3]})]


def test_what_came_after_the_checkpoint_does_not_count() -> None:
    """The next part gave it again, or not."""
    first = _seen({0: [1, 2], 1: [3, 4], 2: [4, 1]})

    assert "same" == answer(WHOLE, [first, _seen({1: [4, 3], 2: [1, 4], 3: [3, 2]})]).text
    assert (
        "1 lost, 1 repeated"
        == answer(WHOLE, [first, _seen({1: [3, 4], 2: [4, 1], 3: [2, 4]})]).text
    )
    assert "2 lost" == answer(WHOLE, [first, _seen({1: [3, 4], 2: [4, 1]})]).text
    assert "other order" == answer(WHOLE, [first, _seen({1: [3, 4], 2: [1, 2], 3: [3, 4]})]).text


def test_a_run_that_stops_says_why() -> None:
    """An error with a message before the first batch is a refusal."""
    first = _seen({0: [1, 2]})
    refused = answer(WHOLE, [first, _seen({}, "torch.RuntimeError: other ranks: 2")])

    assert ("refused", "RuntimeError: other ranks: 2") == (refused.kind, refused.message)
    assert "failed" == answer(WHOLE, [first, _seen({}, "KeyError: 'place'")]).kind
    assert "failed" == answer(WHOLE, [first, _seen({1: [3, 4]}, "ValueError: late")]).kind
    assert "hung" == answer(WHOLE, [first, _seen({1: [3, 4]}, hung=True)]).kind


def test_the_page_has_what_was_found() -> None:
    """Its table is that of the stored answers, to the letter; headrace's are all exact."""
    found = json.loads((PAGES / "degrees.json").read_text())

    assert written(found) in (PAGES / "index.md").read_text()
    ours = [about["loaders"]["headrace"] for about in found.values()]
    for each in ours:
        assert each["equal_losses"]
        for key in ("same", "degrees"):
            assert {0} == {each[key]["difference"][what] for what in ("lost", "repeated", "new")}
            assert each[key]["difference"]["same_order"]
