"""What the judge finds in runs that lose, repeat, reorder and alter, and in logs that end early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exam.answers import Answer, Kind, complaint, stopped, together
from exam.compare import compared, merged
from exam.judge import Difference, Step, compare, complete, joined, resumed
from exam.page import written
from exam.ranks import Line

_RUN = [
    Step(epoch, 5 * epoch + step, tuple(range(4 * step, 4 * step + 4)))
    for epoch in (0, 1)
    for step in range(5)
]


def test_an_equal_run_differs_in_nothing() -> None:
    """The same global batches are the same run, in whatever order a batch's samples stand."""
    turned = [replace(step, ids=step.ids[::-1]) for step in _RUN]

    assert Difference() == compare(_RUN, turned)


@given(where=st.integers(0, len(_RUN) - 1), which=st.integers(0, 3))
def test_a_lost_sample_is_found(where: int, which: int) -> None:
    """One sample less at any place is one lost."""
    ids = _RUN[where].ids
    short = replace(_RUN[where], ids=ids[:which] + ids[which + 1 :])
    found = compare(_RUN, [*_RUN[:where], short, *_RUN[where + 1 :]])

    assert (1, 0, False) == (found.lost, found.repeated, found.same_order)


@given(where=st.integers(0, len(_RUN) - 1), which=st.integers(0, 19))
def test_a_repeated_sample_is_found(where: int, which: int) -> None:
    """One sample more at any place is one repeated."""
    long = replace(_RUN[where], ids=(*_RUN[where].ids, which))
    found = compare(_RUN, [*_RUN[:where], long, *_RUN[where + 1 :]])

    assert (0, 1, False) == (found.lost, found.repeated, found.same_order)


@given(one=st.integers(0, 4), other=st.integers(0, 4))
def test_exchanged_batches_are_another_order(one: int, other: int) -> None:
    """Two batches of an epoch that change places lose nothing, and are another order."""
    ids = [step.ids for step in _RUN]
    ids[one], ids[other] = ids[other], ids[one]
    run = [replace(step, ids=each) for step, each in zip(_RUN, ids, strict=True)]

    assert Difference(same_order=one == other) == compare(_RUN, run)


def test_samples_that_no_epoch_should_have_are_new() -> None:
    """Appended ones are not called repeated, a second one of an old sample is."""
    wanted = [Step(0, 1, (1, 2))]

    found = compare(wanted, [Step(0, 1, (1, 2, 2, 7, 7))])

    assert (0, 1, 2) == (found.lost, found.repeated, found.new)


def test_a_sample_in_the_other_epoch_is_lost_and_repeated() -> None:
    """What comes an epoch late is lost in one and repeated in the next."""
    first, last = _RUN[0], _RUN[-1]
    run = [
        replace(first, ids=first.ids[1:]),
        *_RUN[1:-1],
        replace(last, ids=(*last.ids, first.ids[0])),
    ]
    found = compare(_RUN, run)

    assert (1, 1) == (found.lost, found.repeated)


@given(sizes=st.lists(st.integers(1, 9), max_size=20))
def test_other_batch_sizes_are_no_other_order(sizes: Sequence[int]) -> None:
    """The same samples in the same order are so whatever the boundaries of batches are."""
    ids = [each for step in _RUN for each in step.ids]
    run: list[Step] = []
    start = 0
    for size in [*sizes, len(ids)]:
        epoch = 0 if start < 20 else 1
        end = min(start + size, 20 if epoch == 0 else 40)
        run.append(Step(epoch, len(run), tuple(ids[start:end])))
        start = end
    run.append(Step(1, len(run), tuple(ids[start:])))

    assert Difference() == compare(_RUN, run)


def test_what_came_after_the_checkpoint_counts_once() -> None:
    """Steps that were taken after the checkpoint and then again are the model's once."""
    assert _RUN == resumed(_RUN[:7], 4, _RUN[5:])


def test_completeness_knows_no_order() -> None:
    """An epoch is complete in any order, and altered samples count."""
    run = [replace(step, altered=int(step.step == 3)) for step in reversed(_RUN)]

    assert (0, 0, 1) == _counts(complete(range(20), 2, run))
    assert (2, 0, 1) == _counts(complete(range(21), 2, run))


def _counts(found: Difference) -> tuple[int, int, int]:
    return found.lost, found.repeated, found.altered


def test_ranks_are_joined_by_step() -> None:
    """A global batch is what all ranks got at a step."""
    line: Line = {"epoch": 0, "step": 1, "ids": [1], "altered": 0}
    logs: list[list[Line]] = [[{"imported": True}, line], [{**line, "ids": [2], "altered": 1}]]

    assert [Step(0, 1, (1, 2), 1)] == joined(logs)


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ({"error": "ValueError", "message": "batch_size is 8, expected 12"}, "refused"),
        ({"error": "KeyError", "message": "3"}, "failed"),
        ({"error": "ValueError", "message": ""}, "failed"),
        ({"not_offered": "states are of their ranks"}, "not offered"),
        ({"epoch": 0, "step": 1, "ids": [1], "altered": 0}, "failed"),
    ],
)
def test_a_refusal_is_told_from_an_accident(last: dict[str, object], kind: Kind) -> None:
    """Only an error that says something, before the first batch, is a refusal."""
    answer = stopped([[{"imported": True}, last]], hung=False)

    assert answer is not None
    assert kind == answer.kind


def test_an_error_in_the_middle_is_a_failure_but_for_damage() -> None:
    """After the first batch an error refuses nothing, unless it could not be found earlier."""
    lines: list[list[Line]] = [
        [{"epoch": 0, "step": 1, "ids": [1], "altered": 0}, {"error": "OSError", "message": "crc"}]
    ]
    early, late = complaint(lines, hung=False), complaint(lines, hung=False, errors_refuse=True)

    assert early is not None
    assert late is not None
    assert ("failed", "refused") == (early.kind, late.kind)


def _read(lost: int = 0, *, same_order: bool = True) -> Answer:
    found = Difference(lost=lost, repeated=lost, same_order=same_order)
    return Answer(kind="read", difference=found)


@pytest.mark.parametrize(
    ("answers", "cell"),
    [
        ((_read(3), _read(3)), "3 lost, 3 repeated"),
        ((_read(3), _read()), "0 to 3 lost, 0 to 3 repeated"),
        ((_read(1), _read(2), _read(1)), "1 to 2 lost, 1 to 2 repeated"),
        ((_read(), _read(same_order=False)), "sometimes same, sometimes other order"),
        ((_read(4), Answer(kind="hung")), "sometimes 4 lost, 4 repeated, sometimes hung"),
    ],
)
def test_answers_of_two_runs_become_one_cell(answers: tuple[Answer, ...], cell: str) -> None:
    """What depends on a moment is a range, or something that is so sometimes."""
    assert cell == together(answers)


def test_two_runs_are_compared() -> None:
    """Counts differ, seconds may; what only one run was asked is not compared."""
    one, other = (
        {
            "ours": {
                "version": "1",
                "answers": {
                    "same": {**_read().to_json(), "first_s": seconds, "spent_s": 60.0},
                    "kills": _read(lost).to_json(),
                },
            }
        }
        for seconds, lost in ((1.0, 3), (2.0, 5))
    )
    other["ours"]["answers"]["seed"] = _read().to_json()  # type: ignore[index] # a mapping

    text = compared(one, other)

    assert "1 of 2 answers were the same in both" in text
    assert "3 to 5 lost, 3 to 5 repeated" in written(merged(one, other))
