"""README.md: every promise has a test, and every test that is named is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
_PAGE = (Path(__file__).parent / "README.md").read_text()


def _promises() -> dict[str, list[tuple[str, str]]]:
    """The files and tests of each promise; the test is empty where a program is named."""
    table = _PAGE.split("\n| promise | test |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [line.strip("| ").rsplit(" | ", 1) for line in table.splitlines()]
    return {
        promise: [(path, test) for path, test in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", tests)]
        for promise, tests in rows
    }


_PROMISES = _promises()


@pytest.mark.parametrize("promise", _PROMISES)
def test_a_promise_has_its_tests(promise: str) -> None:
    """Each that the page names is in the file that it names."""
    named = _PROMISES[promise]

    assert named, "a promise without a test"
    assert [] == [
        (path, test)
        for path, test in named
        if not (_TESTS / path).is_file()
        or (test and f"\ndef {test}(" not in (_TESTS / path).read_text())
    ]


def test_programs_without_a_test_are_attacks() -> None:
    """Of a file of tests one is named; of an attack the program is the test."""
    programs = [path for named in _PROMISES.values() for path, test in named if not test]

    assert programs
    assert all(path.startswith("attacks/a") for path in programs)
