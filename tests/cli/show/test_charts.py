"""Claims about the pictures of commands: they show what was found, in the colours of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bench import Diagnosis, Need, StoreDiagnosis
from headrace.bench.doctor import Pass
from headrace.bench.store_doctor import Rate
from headrace.cli.group import run
from headrace.cli.show.charts import draw_diagnosis, draw_store, draw_use
from headrace.loadtest.report.style import DARK, LIGHT
from support.datasets import write_rows


@pytest.mark.parametrize(("options", "colours"), [((), LIGHT), (("--dark",), DARK)])
def test_a_batch_is_drawn_as_it_is_dealt(
    tmp_path: Path, options: tuple[str, ...], colours: tuple[str, ...]
) -> None:
    """A line a rank of the mesh, with the parts of the storage named."""
    url, picture = str(tmp_path / "d"), tmp_path / "batch.svg"
    write_rows(url, sample_count=64, width=1)
    mesh = ("--mesh", "dp=2,tp=2", "--picture", str(picture))

    assert 0 == run(["order", url, "--global-batch-size", "8", "--step", "9", *mesh[2:], *options])
    assert "step 9 of epoch 1" in picture.read_text()
    assert 0 == run(["order", url, "--global-batch-size", "8", "--step", "2", *mesh, *options])
    text = picture.read_text()

    assert "step 2 of epoch 0" in text
    assert ["rank 3"] == [line for line in ("rank 3", "rank 4") if f">{line}<" in text]
    assert "part 8 of 8" in text
    assert colours[7] in text


def test_a_mixture_is_drawn_by_its_datasets(tmp_path: Path) -> None:
    """They are named as in their URLs."""
    urls = [str(tmp_path / name) for name in ("red", "blue")]
    for url in urls:
        write_rows(url, sample_count=64, width=1)
    picture = tmp_path / "batch.svg"

    assert 0 == run(["order", *urls, "--global-batch-size", "8", "--picture", str(picture)])

    assert ">red<" in picture.read_text()
    assert ">blue<" in picture.read_text()


def test_what_keeps_a_job_busy_is_drawn(tmp_path: Path) -> None:
    """Both passes, the hops that took time, and the verdict."""
    hops = {"store": 0.7, "network": 0.3, "server": 0.0}
    slow, fast = Pass(900.0, 3.0, 40.0, hops), Pass(4000.0, 12.0, 2.0, {"client": 1.0})
    found = Diagnosis(Need(2000.0, 64), 0.4, slow, fast, False, "store", "too slow", "")
    picture = tmp_path / "doctor.svg"
    draw_diagnosis(picture, found, is_dark=False)
    text = picture.read_text()

    assert all(f">{word}<" in text for word in ("first pass", "second pass", "store", "client"))
    assert ">server<" not in text
    assert "too slow" in text


def test_what_a_store_gives_is_drawn(tmp_path: Path) -> None:
    """The rate by simultaneous reads, beside the need."""
    rates = (Rate(1, 10.0, 5.0), Rate(2, 18.0, 6.0), Rate(4, 20.0, 9.0))
    found = StoreDiagnosis(5.0, 9.0, 1 << 20, rates, 15.0, 15.0, 0.1, 1 << 30, 2, True, "fits")
    draw_store(tmp_path / "store.svg", found, is_dark=True)

    text = (tmp_path / "store.svg").read_text()
    assert all(f">{word}<" in text for word in ("1", "2", "4", "the store", "fits"))


def test_what_is_too_much_has_another_colour(tmp_path: Path) -> None:
    """With its share in numbers."""
    draw_use(tmp_path / "p.svg", {"network": 0.5, "store": 2.5}, title="short", is_dark=False)

    text = (tmp_path / "p.svg").read_text()
    assert "250 %" in text
    assert f"fill: {LIGHT[6]}" in text
