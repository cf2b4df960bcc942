"""Each page of docs/integrations prints a program that runs, and differs little from the native."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from integrations.conftest import OWN
from integrations.printed import PAGES, Page
from support.environments import run_tests
from support.typed import strict_mypy

NAMES = sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "index")


@pytest.mark.parametrize("name", NAMES)
def test_at_most_five_lines_change(name: str) -> None:
    """From the framework's own loader to ours, on a page of at most 500 words beside the code."""
    page = Page.read(name)

    assert 1 <= len(page.changed) <= 5, page.changed
    assert page.words <= 500


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_the_program_runs_as_it_is_printed(
    name: str, python_with: Callable[[str], str], address: str, tmp_path: Path
) -> None:
    """Twice, the second time going on from the checkpoint; and the native one once, elsewhere."""
    page, python = Page.read(name), python_with(name)
    native = tmp_path / "native"
    native.mkdir()

    page.run(tmp_path, address, python)
    page.run(tmp_path, address, python)
    page.run_native(native, python)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OWN)
def test_frameworks_that_are_not_installed_here_pass_their_tests(
    name: str, python_with: Callable[[str], str], tmp_path: Path
) -> None:
    """None of which is skipped, in an environment of their own."""
    run_tests(python_with(name), Path(__file__).with_name(f"test_{name}.py"), tmp_path / "t")


@pytest.mark.long
def test_programs_are_clean_to_mypy(tmp_path: Path) -> None:
    """With strict rules, as far as the framework has types itself."""
    for name in NAMES:
        (tmp_path / f"{name}_train.py").write_text(Page.read(name).ours)
    done = strict_mypy(tmp_path.glob("*.py"), timeout_s=280)

    assert done.returncode == 0, done.stdout
