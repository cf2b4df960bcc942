"""The exam finds out faulty readers and passes a faultless one; and headrace's own answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exam import waits
from exam.answers import Answer, Kind
from exam.candidate import Candidate
from exam.libraries import Library, library_called
from exam.questions import (
    appended,
    control,
    damaged,
    fewer_ranks,
    mixture,
    more_ranks,
    other_batch,
    other_seed,
    same,
    second_epoch,
    server_killed,
    trainers_killed,
)
from exam.waits_page import drawn, written

_FAKE = Library(
    name="fake",
    entry="exam.fake",
    package="pytest",
    python=lambda: sys.executable,
    page="",
    promise="",
    files="*.rows",
)
_DOCS = Path(__file__).parents[2] / "docs"
Ask = Callable[[Candidate], Answer]
_A_BATCH, _HALF = 24, 49 * 24


@pytest.fixture
def candidate(tmp_path: Path) -> Iterator[Candidate]:
    """Return a reader in the exam, which has no fault yet."""
    with Candidate(_FAKE, tmp_path, kills=3, workers=0, hung_s=3) as found:
        yield found


def _with(fault: str, candidate: Candidate) -> Candidate:
    (candidate.folder / "fault").write_text(fault)
    return candidate


def test_a_faultless_reader_passes(candidate: Candidate) -> None:
    """Whatever is asked of it, its answer is that nothing differs."""
    asked = (control, same, second_epoch, more_ranks, fewer_ranks, other_batch, mixture)
    answers = {ask.__name__: ask(candidate).text for ask in (*asked, trainers_killed)}

    assert {"same"} == set(answers.values()), answers


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("loses", "24 lost"),
        ("repeats", "24 repeated"),
        ("forgets", f"{_HALF:,} repeated"),
        ("reorders", "other order"),
        ("refuses", "refused"),
        ("has an accident", "failed"),
        ("offers nothing", "not offered"),
        ("dies", "failed"),
        ("hangs", "hung"),
    ],
)
def test_a_fault_at_the_resume_is_found(fault: str, text: str, candidate: Candidate) -> None:
    """What a reader does wrong when it goes on is its answer."""
    assert text == same(_with(fault, candidate)).text


def test_the_control_shows_an_entry_that_is_broken(candidate: Candidate) -> None:
    """Another order in each run, and altered samples, show without any disturbance."""
    assert "other order" == control(_with("never agrees", candidate)).text


def test_altered_samples_are_counted(candidate: Candidate) -> None:
    """One sample of each batch of a rank in the second epoch has other bytes."""
    assert "200 altered" == control(_with("alters", candidate)).text


@pytest.mark.alone  # a reader that gets no processor ends before it is killed
def test_kills_show_what_a_resume_loses(candidate: Candidate) -> None:
    """A reader that skips a batch at each resume has lost some after three kills."""
    answer = trainers_killed(_with("loses", candidate))

    assert answer.difference is not None
    assert answer.difference.lost >= _A_BATCH


def test_options_and_data_that_change_unnoticed_show(candidate: Candidate) -> None:
    """A reader that looks at nothing takes another seed, damage and more samples as they come."""
    seed, damage, more = (ask(candidate) for ask in (other_seed, damaged, appended))

    assert seed.difference is not None
    assert seed.difference.lost == seed.difference.repeated > 0
    assert damage.text in {"1 altered", "failed", "refused"}
    assert "same" != more.text


@pytest.fixture(scope="module")
def headrace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Candidate]:
    """Return headrace as a candidate, in the short form: no workers, few kills."""
    folder = tmp_path_factory.mktemp("exam")
    with Candidate(library_called("ours"), folder, kills=2, workers=0) as found:
        yield found


@pytest.mark.parametrize("ask", [same, more_ranks, trainers_killed, server_killed])
def test_headrace_gives_the_same_batches(ask: Ask, headrace: Candidate) -> None:
    """A resume, other ranks, and kills of trainers and of servers change nothing."""
    answer = ask(headrace)

    assert "same" == answer.text, answer


@pytest.mark.parametrize(("ask", "kind"), [(other_seed, "refused"), (damaged, "refused")])
def test_headrace_refuses(ask: Ask, kind: Kind, headrace: Candidate) -> None:
    """Another seed and a damaged shard are errors."""
    answer = ask(headrace)

    assert kind == answer.kind, answer


def test_a_loop_that_waits_is_measured(candidate: Candidate) -> None:
    """Shares, memory and processor time of the faultless reader, which has no service."""
    job = replace(candidate.job(world=1), save_every=20, step_s=0.002)
    found = waits.figures(candidate, job)

    assert 0 < found["share"] < 1
    assert found["longest_s"] >= found["share"] * 0.002
    assert found["mib"] > 1
    assert found["cpu_us"] >= 0


def test_waits_become_a_table_and_a_picture() -> None:
    """Medians, the cold store beside the warm one, and failures by name."""
    row = {"share": [0.5, 0.1, 0.2], "longest_s": [0.3], "first_s": [1.0], "cpu_us": [7.0]}
    found = {"rows": {"ours": {"warm": {**row, "mib": [2.0]}, "cold": {"error": "a < b"}}}}

    assert "| rows, 4 KiB | waiting |" in written(found)
    assert "| headrace | 20.0 % | 300 ms | 1.0 s | 7 µs | 2 |" in written(found)
    assert "| headrace, cold | failed: a < b |" in written(found)
    assert "20.0 %" in drawn(found)


def test_the_page_has_the_figures_that_are_stored() -> None:
    """Table and picture are those of the stored figures, to the letter."""
    found = json.loads((_DOCS / "exam" / "waits.json").read_text())

    assert written(found) in (_DOCS / "exam.md").read_text()
    assert drawn(found) == (_DOCS / "exam" / "waits.svg").read_text()
