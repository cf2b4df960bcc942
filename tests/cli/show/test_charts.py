"""Claims about the pictures of commands: they show what was found, in the colours of the page."""

from __future__ import annotations

from importlib.resources import files
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.bench import Diagnosis, Need, StoreDiagnosis
from headrace.bench.doctor import Pass
from headrace.bench.store_doctor import Rate
from headrace.cli.group import run
from headrace.cli.show.charts import draw_diagnosis, draw_store, draw_use
from headrace.loadtest.report.style import DARK, LIGHT, Colours
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


_SEEN_BY = {
    "most": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopes": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopes": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
"""What becomes of linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""
_TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750]]
_TO_XYZ += [[0.0193339, 0.1191920, 0.9503041]]
_WHITE = (0.95047, 1.0, 1.08883)


@pytest.mark.parametrize("eyes", _SEEN_BY)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_the_colour_blind_can_tell_colours_apart(colours: Colours, eyes: str) -> None:
    """Each from each other by 15 in CIE L*a*b*, where a difference of 2.3 can just be seen."""
    seen = _lab(np.clip(_linear(colours) @ np.array(_SEEN_BY[eyes]).T, 0, 1))

    assert 15 <= min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))


@pytest.mark.parametrize(("colours", "paper"), [(LIGHT, "#ffffff"), (DARK, "#13161c")])
def test_colours_stand_out_from_their_paper(colours: Colours, paper: str) -> None:
    """By the 3 to 1 that WCAG asks of charts, but for the last one, which is for what is left."""
    light = _linear((paper, *colours[:-1])) @ np.array(_TO_XYZ[1])
    low, high = np.minimum(light[0], light[1:]), np.maximum(light[0], light[1:])

    assert 3 <= min((high + 0.05) / (low + 0.05))


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_pictures_have_the_colours_of_the_page(colours: Colours) -> None:
    """So that a command's picture beside the page needs no second look."""
    named = "; ".join(f"--{name}: {each}" for name, each in zip("abcdefghi", colours, strict=True))

    assert named in (files("headrace.page") / "static/page.css").read_text()


def _linear(colours: tuple[str, ...]) -> NDArray[np.float64]:
    """Return linear RGB, ``(colours, 3) float64`` in ``[0, 1]``."""
    parts = np.array([list(bytes.fromhex(each[1:])) for each in colours]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _lab(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return CIE L*a*b* for D65."""
    ratio = linear @ np.array(_TO_XYZ).T / np.array(_WHITE)
    x, y, z = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio * 841 / 108 + 4 / 29).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)
