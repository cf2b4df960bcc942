"""The comparison with other readers: that it compares the same samples, and what the page says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.__main__ import together
from benchmarks.peers.kinds import SAMPLE_COUNTS, make
from benchmarks.peers.libraries import LIBRARIES, Child, Library, library_of
from benchmarks.peers.page import page, tables
from benchmarks.peers.plots import draw
from benchmarks.peers.reader import REPEATED
from benchmarks.peers.samples import Items, digest, load, save
from support.slow_store import can_be_compiled, slow_store

_DOCS = Path(__file__).parents[2] / "docs"
_FIGURES = _DOCS / "performance" / "peers.json"


@pytest.fixture(scope="module")
def figures() -> Mapping[str, Any]:
    """What the last run found."""
    found: dict[str, Any] = json.loads(_FIGURES.read_text())
    return found


def test_the_page_shows_the_figures(figures: Mapping[str, Any]) -> None:
    """Tables and links between the marks are those of the stored figures, to the letter."""
    text = (_DOCS / "readers.md").read_text()

    assert page(text, figures) == text


@pytest.mark.parametrize(
    ("part", "name"),
    [("local", "readers.svg"), ("s3", "readers-s3.svg"), ("order", "order.svg")],
)
def test_plots_are_text(figures: Mapping[str, Any], tmp_path: Path, part: str, name: str) -> None:
    """A plot is drawn from the figures, names headrace, and stays small, as the stored one does."""
    draw(part, figures, tmp_path / name)

    for path in (tmp_path / name, _DOCS / "performance" / name):
        assert path.stat().st_size < 100_000
        assert "headrace" in path.read_text()


def test_a_reader_that_failed_is_shown() -> None:
    """Its row says why, and the others keep their ratios."""
    row: dict[str, Any] = {"kind": "rows", "library": "headrace", "workers": 0}
    other = {**row, "library": "other"}
    about = {"samples": 10, "batch_size": 5, "sample_bytes": 8}
    text = tables(
        {
            "machine": {"cores": 2},
            "versions": {},
            "rounds": 1,
            "kinds": {"rows": about},
            "local": [
                {**row, "rate": [200.0, 100.0, 300.0], "first_s": [0.5]},
                {**other, "library": "half", "rate": [100.0]},
                {**other, "error": "no wheel"},
            ],
        }
    )

    assert "| headrace | 0 | 200 | 100, 300 | 1.00 | 500.0 | - |" in text
    assert "| half | 0 | 100 | 100, 100 | 0.50 | - | - |" in text
    assert "failed: no wheel" in text


@pytest.mark.parametrize("kind", SAMPLE_COUNTS)
def test_samples_come_back_from_their_files(tmp_path: Path, kind: str) -> None:
    """What a reader's process loads is what was made, in whole batches."""
    made = make(kind, share=0.001)
    save(tmp_path, made)
    found = load(tmp_path)
    rows = range(0, made.sample_count, 37)

    assert found.sample_count == made.sample_count >= 4 * made.batch_size
    assert 0 == found.sample_count % found.batch_size
    for name, column in made.columns.items():
        same = found.columns[name]
        assert isinstance(column, Items) == isinstance(same, Items)
        assert all(np.array_equal(column[row], same[row]) for row in rows)


def test_a_digest_tells_samples_apart_and_not_their_order() -> None:
    """Two rows exchanged are the same samples; two values exchanged are others."""
    x = np.array([[1, 2], [3, 4]])
    batch = digest({"x": x, "label": [7, 8]})

    assert batch == digest({"x": x[::-1], "label": [8, 7]})
    assert batch != digest({"x": x[::-1], "label": [7, 8]})


def test_short_runs_are_put_together(figures: Mapping[str, Any]) -> None:
    """A run of one kind replaces its rows, and those of other kinds and parts stay."""
    row = {"kind": "tokens", "library": "headrace", "workers": 0, "rate": [1.0]}
    about = {"tokens": figures["kinds"]["tokens"]}
    found = together(figures, {"rounds": 1, "kinds": about, "local": [row]})

    assert [each for each in found["local"] if each["kind"] == "tokens"] == [row]
    assert [each for each in found["local"] if each["kind"] == "rows"] == [
        each for each in figures["local"] if each["kind"] == "rows"
    ]
    assert found["s3"] == figures["s3"]
    assert found["order"] == figures["order"]
    assert [*found["kinds"]] == [*figures["kinds"]]


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.module)
def test_every_reader_gives_the_same_samples(tmp_path: Path, library: Library) -> None:
    """Each library writes and reads every kind: an epoch holds each sample once, and is timed."""
    for kind in library.kinds or SAMPLE_COUNTS:
        folder = tmp_path / kind
        save(folder / "samples", make(kind, share=0.01))
        written = _asked(library_of(library.written_by or library.module), folder, "write")
        child = Child(library, folder, remote="", variables={})
        try:
            found = [written, child.ask("check", within_s=300)]
            timed = child.ask("run", within_s=300, workers=library.workers[-1], seconds=0.2)
        finally:
            child.close()

        assert not [answer["error"] for answer in found if "error" in answer], kind
        assert found[1]["equal"], kind
        assert timed.get("rate", 0) > 0, (kind, timed)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not can_be_compiled(), reason="no compiler, or no headers of OpenSSL")
@pytest.mark.parametrize("module", [each.module for each in LIBRARIES if each.reads_s3])
def test_readers_of_a_store_read_what_was_repeated(tmp_path: Path, module: str) -> None:
    """An epoch from the store has as many samples as were written, times the copies."""
    library, copies = library_of(module), 5
    samples = make("texts", share=0.01)
    save(tmp_path / "samples", samples)
    assert "seconds" in _asked(library, tmp_path, "write")
    assert "seconds" in _asked(library, tmp_path, "repeat", times=copies)
    with slow_store(tmp_path / REPEATED, median_ms=1.0, p99_ms=2.0) as store:
        child = Child(library, tmp_path, remote="s3://bucket", variables=store.environment)
        try:
            found = child.ask("cold", within_s=300, workers=0, seconds=300.0)
        finally:
            child.close()

        counted = store.counted()
    assert counted.gets + counted.others > copies
    assert found["samples"] == copies * samples.sample_count
    assert found["processor_us"] > 0


def _asked(library: Library, folder: Path, do: str, **options: int) -> dict[str, Any]:
    child = Child(library, folder, remote="", variables={})
    try:
        return child.ask(do, within_s=300, **options)
    finally:
        child.close()
