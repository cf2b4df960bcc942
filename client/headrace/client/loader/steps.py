"""Find the place of a step in a run, and keep which steps are committed.

Contract:

1. A step is a global batch, counted from the start of the run. Its place depends on the order and
   on the size of global batches: not on ranks, nor on what a loop has read.
2. Steps before the place that a dataset was last moved to are refused, since batches may have had
   another size there.
3. The first step that is not committed is the one after the last that was; in a loop that commits
   none, the one after the last batch that it got.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.arguments import whole
from headrace.client.loader.progress import LoopProgress
from headrace.client.reader.reader import Place
from headrace.errors import BadArgumentError
from headrace.order import NUMBER_LIMIT, EpochPlan, decode_token, encode_token

PlanFrom = Callable[[int], EpochPlan]
"""Returns how an epoch is cut into global batches from a position on."""

Find = Callable[[int], Place]
"""Returns the place of a step; may ask a server."""


def step_of(place: Place) -> int:
    """Return the step that begins at a place: the number of global batches of the run before it."""
    return 0 if place.token is None else decode_token(place.token).step


def place_at(step: int, *, start: Place, plan_from: PlanFrom, first_token: bytes) -> Place:
    """Return the place where a step begins.

    Args:
        step: The step, at or after that of ``start``.
        start: A place of the run. All batches after it have the size of the plan.
        plan_from: How epochs are cut.
        first_token: A token of the run, of which the version and the options are taken.

    Raises:
        BadArgumentError: There is no such step.
    """
    content = decode_token(start.token or first_token)
    ahead, plan = step - step_of(start), plan_from(start.position)
    epoch, base = start.epoch, start.position
    passed = content.sample_count if start.token else 0
    if ahead >= plan.batch_count:
        passed, ahead = passed + _covered(plan), ahead - plan.batch_count
        plan, base = plan_from(0), 0
        if not plan.batch_count:
            raise BadArgumentError(
                f"there is no step {step}: an epoch of {plan.sample_count} samples has no batch of "
                f"{plan.global_batch_size}",
                field="at_step",
            )
        epochs, ahead = divmod(ahead, plan.batch_count)
        epoch, passed = epoch + 1 + epochs, passed + epochs * _covered(plan)
    samples = ahead * plan.global_batch_size
    token = replace(
        content,
        epoch=epoch,
        position=base + samples,
        step=step,
        sample_count=passed + samples,
        global_batch_size=plan.global_batch_size,
    )
    return Place(epoch, base + samples, encode_token(token))


def _covered(plan: EpochPlan) -> int:
    return plan.sample_count - plan.base - plan.dropped


def commit(progress: LoopProgress, step: int, find: Find) -> None:
    """Note that the optimizer has taken a step; -1 if it has taken none yet.

    Args:
        progress: How far the loops of a dataset have got.
        step: The last step that is committed.
        find: Finds its end, if the loop is further.

    Raises:
        BadArgumentError: The loop has not got its batch, or a later step is committed.
    """
    step = whole("step", step, low=-1, high=NUMBER_LIMIT)
    before, place = progress.committed or progress.moved_to, progress.place
    first, end = step_of(before), step_of(place)
    if not first - 1 <= step < end:
        got = f"steps {first} to {end - 1}" if first < end else "none"
        raise BadArgumentError(
            f"step {step} is committed, but the last one before was {first - 1}, and the loop has "
            f"got of later batches those of {got}; expected the `step` of one of them",
            field="step",
        )
    known = {end: place, first: before}
    progress.commit(known.get(step + 1) or find(step + 1))


def next_place(progress: LoopProgress, at_step: int | None, find: Find) -> Place:
    """Return the place of a step; None for the first that is not committed.

    Args:
        progress: How far the loops of a dataset have got.
        at_step: The step.
        find: Finds it, if it is not the next.

    Raises:
        BadArgumentError: The step lies before the place that the dataset was moved to.
    """
    if at_step is None:
        return progress.settled
    at_step = whole("at_step", at_step, low=0, high=NUMBER_LIMIT)
    for known in (progress.place, progress.settled, progress.moved_to):
        if step_of(known) == at_step:
            return known
    first = step_of(progress.moved_to)
    if at_step < first:
        raise BadArgumentError(
            f"at_step is {at_step}, but this dataset started at step {first}, and the batches "
            f"before it may have had another size; expected a step from {first} on, or load the "
            f"state of step {at_step} first",
            field="at_step",
        )
    return find(at_step)


def of_old_share(what: str, remedy: str) -> BadArgumentError:
    """Return the error for batches of a share that is no longer this rank's."""
    return BadArgumentError(
        f"{what} before reshard(), and would read the share of the old rank; {remedy}, and start "
        "another `for` over the loader: it continues after the last committed step. "
        "BatchLoader.reshard() ends its workers for you",
        field="rank",
    )
