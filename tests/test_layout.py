"""The shape of the repository that packaging depends on."""

import re
from pathlib import Path

import pytest

from support.rooms import drawing, drawn

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = ("proto", "storage", "server", "client", "converter")


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_headrace_stays_a_namespace_package(root: str) -> None:
    """An `__init__.py` in a source root would hide the other roots' packages."""
    found = [*(ROOT / root).glob("__init__.py"), *(ROOT / root / "headrace").glob("__init__.py")]

    assert [] == found


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_a_source_root_holds_headrace_alone(root: str) -> None:
    """Whatever else lay there would land at the top of site-packages."""
    found = {path.name for path in (ROOT / root).iterdir() if path.name != "__pycache__"}

    assert {"headrace"} == found


def test_every_package_is_typed() -> None:
    """A namespace package has no common py.typed, so each part brings its own."""
    parts = {
        path.parent
        for root in SOURCE_ROOTS
        for path in (ROOT / root).glob("headrace/*/__init__.py")
    }
    missing = sorted(part.name for part in parts if not (part / "py.typed").exists())

    assert [] == missing


def test_contributing_draws_the_rooms_that_there_are() -> None:
    """Rooms, their arrows and their purposes come from the code."""
    assert drawing() == drawn(), "run PYTHONPATH=tests python -m support.rooms"


def test_contributing_names_places_that_exist() -> None:
    """A newcomer who follows the page finds each file and folder."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:proto|storage|server|client|converter)/[\w/.]+)`", page)

    assert len(named) > 10
    assert [] == [path for path in named if not (ROOT / path).exists()]
