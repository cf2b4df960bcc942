"""The questions, each asked of every library in the same way."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from exam.answers import Answer, complaint, stopped
from exam.candidate import OTHER_FIRST, Candidate
from exam.job import GLOBAL_BATCH, PAYLOAD_BYTES, SAMPLES
from exam.judge import Difference, Step, compare, complete, joined, resumed
from exam.ranks import Line, Ranks, free_port
from exam.stored import stored

_EPOCH_STEPS = SAMPLES // GLOBAL_BATCH
_MID, _SECOND, _MID_ROWS = 49, 147, 14  # the last state up to them is resumed

_STEP_S = 0.004  # so that something happens between two steps that can be killed
_OUTAGE_S, _OUTAGE_STEP_S, _OUTAGE_STEP = 5.0, 0.02, 3
_MOST_STEPS = 20  # of a run before it is killed


def control(candidate: Candidate) -> Answer:
    """Read twice, undisturbed: every sample once an epoch, and both times in the same order."""
    job = candidate.job()
    _, one = candidate.undisturbed(job)
    if isinstance(one, Answer):
        return one
    _, other = candidate.read(job)
    if isinstance(other, Answer):
        return other
    whole = complete(range(SAMPLES), job.epochs, one)
    again = compare(one, other)
    return Answer(kind="read", difference=replace(whole, same_order=again.same_order))


def same(candidate: Candidate) -> Answer:
    """Resume in mid-epoch, with the same ranks and workers."""
    return candidate.resumed(candidate.job(), candidate.job(), _MID)


def second_epoch(candidate: Candidate) -> Answer:
    """Resume in the second epoch."""
    return candidate.resumed(candidate.job(), candidate.job(), _SECOND)


def more_workers(candidate: Candidate) -> Answer:
    """Resume with four workers a rank instead of two."""
    return candidate.resumed(candidate.job(), replace(candidate.job(), workers=4), _MID)


def more_ranks(candidate: Candidate) -> Answer:
    """Resume with three ranks instead of two, and the same global batch."""
    return candidate.resumed(candidate.job(), candidate.job(world=3), _MID)


def fewer_ranks(candidate: Candidate) -> Answer:
    """Resume with six ranks instead of eight, without workers, and the same global batch."""
    first, then = (replace(candidate.job(world=world), workers=0) for world in (8, 6))
    return candidate.resumed(first, then, _MID)


def other_seed(candidate: Candidate) -> Answer:
    """Resume with another seed, by mistake."""
    return candidate.resumed(candidate.job(), replace(candidate.job(), seed=8), _MID)


def other_batch(candidate: Candidate) -> Answer:
    """Resume with batches of 6 instead of 12, by mistake."""
    return candidate.resumed(candidate.job(), replace(candidate.job(), batch=6), _MID)


def no_shuffle(candidate: Candidate) -> Answer:
    """Resume without shuffling, by mistake."""
    return candidate.resumed(candidate.job(), replace(candidate.job(), shuffle=False), _MID)


def mixture(candidate: Candidate) -> Answer:
    """Resume a mixture of two equal parts."""
    job = candidate.job(parts=("a", "b"))
    answer = candidate.resumed(job, job, _MID)
    if answer.kind != "read":
        return answer
    _, one = candidate.undisturbed(job)
    _, other = candidate.read(job)
    if isinstance(one, list) and isinstance(other, list) and compare(one, other) != Difference():
        return Answer(kind="undisturbed runs differ")
    return answer


def packed(candidate: Candidate) -> Answer:
    """Resume an epoch of packed rows; what is counted are tokens."""
    return _packed(candidate, world=2)


def packed_ranks(candidate: Candidate) -> Answer:
    """Resume such an epoch with three ranks instead of two."""
    return _packed(candidate, world=3)


def _packed(candidate: Candidate, *, world: int) -> Answer:
    if not candidate.library.packs:
        return Answer(kind="not offered", message="it packs no documents into rows")
    first, then = (
        replace(candidate.job(world=each, parts=("d",)), is_packed=True, epochs=1)
        for each in (2, world)
    )
    answer = candidate.resumed(first, then, _MID_ROWS)
    if answer.kind != "read":
        return answer
    _, one = candidate.undisturbed(first)
    _, other = candidate.read(first)
    if isinstance(one, list) and isinstance(other, list) and compare(one, other) != Difference():
        return Answer(kind="undisturbed runs differ")
    return answer


def damaged(candidate: Candidate) -> Answer:
    """Read after one byte in the middle of a file of samples has changed."""
    whole = candidate.data("a")
    broken = candidate.folder / "broken" / "a"
    shutil.copytree(whole, broken)
    files = sorted(broken.rglob(candidate.library.files), key=lambda path: path.name)
    path = files[len(files) // 2]
    found = bytearray(path.read_bytes())
    found[len(found) // 2 + PAYLOAD_BYTES // 4] ^= 0xFF
    path.write_bytes(found)
    job = replace(candidate.job(), folders=(str(broken),), epochs=1)
    with candidate.started(job) as ranks:
        ranks.wait()
        lines = ranks.lines()
    if answer := stopped(lines, hung=ranks.hung, errors_refuse=True):
        return answer
    return Answer(kind="read", difference=complete(range(SAMPLES), 1, joined(lines)))


def outage(candidate: Candidate) -> Answer:
    """Read while the S3 store below resets all connections for five seconds."""
    if not candidate.library.reads_s3:
        return Answer(kind="not asked", message="its entry reads local files")
    with stored(candidate.data("a"), candidate.folder / "weed") as store:
        job = replace(
            candidate.job(),
            folders=(store.folder,),
            store=store.environment,
            epochs=1,
            step_s=_OUTAGE_STEP_S,
            save_every=0,
        )
        _, wanted = candidate.undisturbed(job)
        if isinstance(wanted, Answer):
            return replace(wanted, message=f"before anything happened: {wanted.message}")
        with candidate.started_alone(job) as ranks:
            ranks.wait(_past(_OUTAGE_STEP))
            with store.down():
                time.sleep(_OUTAGE_S)
            ranks.wait()
            lines = ranks.lines()
    if answer := stopped(lines, hung=ranks.hung):
        return answer
    return Answer(kind="read", difference=compare(wanted, joined(lines)))


def appended(candidate: Candidate) -> Answer:
    """Resume after samples were appended."""
    if candidate.library.stateless:
        return candidate.stateless()
    grown = candidate.folder / "grown" / "a"
    job = replace(candidate.job(), folders=(str(grown),))
    shutil.copytree(candidate.data("a"), grown)
    candidate.undisturbed(job)
    reason = candidate.store(grown, first=OTHER_FIRST, count=SAMPLES // 2, how="append")
    if reason:
        return Answer(kind="not offered", message=reason)
    return candidate.resumed(job, job, _MID)


def trainers_killed(candidate: Candidate) -> Answer:
    """Kill a trainer at a random moment, and all go on from the last state; again and again."""
    if candidate.library.stateless:
        return candidate.stateless()
    job = candidate.job()
    _, wanted = candidate.undisturbed(job)
    if isinstance(wanted, Answer):
        return wanted
    chance, seen, state = random.Random(candidate.seed), list[Step](), (Path(), 0)
    for number in range(candidate.kills + 1):
        folder, step = state
        resume = str(folder) if step else ""
        told = replace(job, resume=resume, resume_step=step, step_s=_STEP_S)
        is_last = number == candidate.kills
        with candidate.started(told) as ranks:
            ranks.wait(None if is_last else _past(step + chance.randint(1, _MOST_STEPS)))
            time.sleep(chance.uniform(0, 2 * _STEP_S))
            ranks.kill(chance.randrange(job.world))
            lines = ranks.lines()
        if answer := (stopped if is_last else complaint)(lines, hung=ranks.hung):
            return replace(answer, message=f"after {number} kills: {answer.message}")
        seen = resumed(seen, step, joined(lines))
        state = (ranks.folder, ranks.saved()) if ranks.saved() else state
    return Answer(kind="read", difference=compare(wanted, seen))


def server_killed(candidate: Candidate) -> Answer:
    """Kill what serves at a random moment, and start it again; again and again."""
    if not candidate.library.has_service:
        return Answer(kind="no server")
    job = candidate.job()
    _, wanted = candidate.undisturbed(job)
    if isinstance(wanted, Answer):
        return wanted
    chance, port, step = random.Random(candidate.seed), free_port(), 0
    told = replace(job, address=f"127.0.0.1:{port}", step_s=_STEP_S, save_every=0)
    with ExitStack() as stack:
        ranks: Ranks | None = None
        for number in range(candidate.kills + 1):
            with candidate.service(job, port):
                ranks = ranks or stack.enter_context(candidate.ranks(told))
                step += chance.randint(1, 2 * _EPOCH_STEPS // (candidate.kills + 1))
                ranks.wait(None if number == candidate.kills else _past(step))
                time.sleep(chance.uniform(0, 2 * _STEP_S))
        assert ranks is not None
        lines = ranks.lines()
    if answer := stopped(lines, hung=ranks.hung, errors_refuse=True):
        return answer
    return Answer(kind="read", difference=compare(wanted, joined(lines)))


def _past(step: int) -> Callable[[Sequence[Sequence[Line]]], bool]:
    def is_past(lines: Sequence[Sequence[Line]]) -> bool:
        return any(rank and rank[-1].get("step", 0) >= step for rank in lines)

    return is_past


@dataclass(frozen=True, slots=True)
class Question:
    """One row of the matrix.

    Attributes:
        key: Its name on the command line.
        title: What stands in the matrix.
        ask: Asks it.
    """

    key: str
    title: str
    ask: Callable[[Candidate], Answer]


QUESTIONS = (
    Question("control", "nothing is disturbed", control),
    Question("same", "resume in mid-epoch", same),
    Question("workers", "with 4 workers a rank instead of 2", more_workers),
    Question("ranks-2-3", "on 3 ranks instead of 2", more_ranks),
    Question("ranks-8-6", "on 6 ranks instead of 8", fewer_ranks),
    Question("second", "in the second epoch", second_epoch),
    Question("mixture", "in a mixture of two", mixture),
    Question("packed", "packed rows, in tokens", packed),
    Question("packed-2-3", "packed rows on 3 ranks instead of 2", packed_ranks),
    Question("kills", "trainers killed again and again", trainers_killed),
    Question("server", "server killed again and again", server_killed),
    Question("seed", "resume with another seed", other_seed),
    Question("batch", "with another batch size", other_batch),
    Question("shuffle", "without shuffling", no_shuffle),
    Question("outage", "its S3 store is down for 5 s", outage),
    Question("damaged", "a byte of a file changed", damaged),
    Question("appended", "samples appended before the resume", appended),
)
