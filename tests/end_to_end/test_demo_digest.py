"""The demo's proof notices what it claims to notice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from demo.digest import BatchKey, SampleIds, SeenFile, compare, read_attempt

WANTED = {
    BatchKey(0, 0): np.array([3, 1, 2, 0]),
    BatchKey(0, 4): np.array([7, 6, 4, 5]),
    BatchKey(1, 0): np.array([0, 5, 1, 7]),
}


def test_world_size_does_not_change_what_was_seen(tmp_path: Path) -> None:
    """Slices of three ranks, laid end to end, are the global batches."""
    paths = _write(tmp_path, ([0, 1], [1, 3], [3, 4]))

    assert compare([WANTED], read_attempt(paths)).equal


def test_a_step_that_one_rank_did_not_finish_is_left_out(tmp_path: Path) -> None:
    """Ranks are killed at different steps; only whole global batches count."""
    paths = _write(tmp_path, ([0, 2], [2, 4]))
    with SeenFile(paths[1]) as seen:
        seen.append(BatchKey(0, 0), WANTED[BatchKey(0, 0)][2:])

    assert read_attempt(paths).keys() == {BatchKey(0, 0)}


def test_redone_steps_count_once() -> None:
    """A successor that repeats steps after the checkpoint changes neither digest nor counts."""
    first = _part(BatchKey(0, 0), BatchKey(0, 4))
    second = _part(BatchKey(0, 4), BatchKey(1, 0))

    result = compare([first, second], WANTED)

    assert result.equal
    assert (result.samples_seen, result.samples_lost, result.samples_repeated) == (12, 0, 0)
    assert result.steps_redone == 1


def test_a_redone_step_with_other_samples_is_a_repetition() -> None:
    """A successor that gets other samples for the same step is not counted away."""
    first = _part(BatchKey(0, 0)) | {BatchKey(0, 4): np.array([4, 5, 6, 0])}
    second = _part(BatchKey(0, 4), BatchKey(1, 0))

    assert compare([first, second], WANTED).samples_repeated == 4


def test_lost_and_repeated_samples_are_counted() -> None:
    """One sample in the place of another is one lost and one repeated."""
    seen = WANTED | {BatchKey(0, 4): np.array([7, 6, 4, 3])}

    result = compare([seen], WANTED)

    assert not result.equal
    assert (result.samples_lost, result.samples_repeated) == (1, 1)


def test_another_order_in_a_batch_is_noticed() -> None:
    """The digest covers the order of samples, not only their set."""
    seen = WANTED | {BatchKey(0, 4): np.array([6, 7, 4, 5])}

    assert not compare([seen], WANTED).equal


def _part(*keys: BatchKey) -> dict[BatchKey, SampleIds]:
    return {key: WANTED[key] for key in keys}


def _write(folder: Path, slices: Sequence[Sequence[int]]) -> list[Path]:
    """Note each rank's slice of every global batch in a file of its own."""
    paths = [folder / "seen" / f"rank-{rank}.bin" for rank in range(len(slices))]
    for path, (start, stop) in zip(paths, slices, strict=True):
        with SeenFile(path) as seen:
            for key, ids in WANTED.items():
                seen.append(key, ids[start:stop])
    return paths
