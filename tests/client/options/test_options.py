"""docs/options.md and the docstring name every option there is, and nothing else."""

from __future__ import annotations

import inspect
import re
from dataclasses import Field, fields
from pathlib import Path

import pytest

from headrace.client import NumpyDataset, Order, RemoteDataset, Sharding, Transport

PAGE = Path(__file__).parents[3] / "docs" / "options.md"
OPTIONS = dict(list(inspect.signature(RemoteDataset.__init__).parameters.items())[1:])

_MIB_A_GIB = 1 << 10


def _rows(heading: str = "# Every option\n") -> list[list[str]]:
    _, _, rest = PAGE.read_text().partition(heading)
    table = [line for line in re.split(r"\n##+ ", rest)[0].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def _as_documented(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, int) and default >= 1 << 20:
        mib = default >> 20
        return f"`{mib >> 10} GiB`" if mib >= _MIB_A_GIB else f"`{mib} MiB`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default!r}`"


def test_the_page_has_every_option_with_its_default() -> None:
    """In the order of the signature, with the values that each may have."""
    wanted = [(f"`{name}`", _as_documented(each.default)) for name, each in OPTIONS.items()]

    assert wanted == [(name, default) for name, _, default, _ in _rows()]
    assert [] == [name for name, values, _, _ in _rows() if not values]


@pytest.mark.parametrize("kind", [Order, Sharding, Transport])
def test_the_page_has_every_field_of_an_object(kind: type[Order | Sharding | Transport]) -> None:
    """With its default, as those of the dataset."""
    made = kind()
    wanted = [(f"`{each.name}`", _default(each, getattr(made, each.name))) for each in fields(kind)]

    _, *rows = _rows(f"## {kind.__name__}\n")
    assert wanted == [(name, default) for name, _, default, _ in rows]
    assert [] == [name for name, values, _, source in rows if not (values and source)]


def _default(field: Field[object], value: object) -> str:
    return _as_documented(value) if field.default is value else f"`{type(value).__name__}()`"


def test_the_page_says_where_each_default_comes_from() -> None:
    """A measurement, a limit, or that it is arbitrary; only what has no default says nothing."""
    unexplained = [name for name, _, default, source in _rows() if not source]

    assert unexplained == [name for name, _, default, _ in _rows() if default == "required"]


def test_a_first_job_finds_what_it_sets() -> None:
    """At most 15 parameters of its own, and three objects for the rest."""
    objects = [name for name in OPTIONS if name in ("order", "sharding", "transport")]

    assert 3 == len(objects)
    assert len(OPTIONS) - len(objects) <= 15
    assert not [name for name in inspect.signature(NumpyDataset).parameters if name not in OPTIONS]


def test_the_docstring_has_every_option() -> None:
    """In the order of the signature, so that `help` finds what an editor shows."""
    arguments = inspect.getdoc(RemoteDataset.__init__) or ""
    _, _, arguments = arguments.partition("Args:\n")
    arguments = arguments.partition("\n\n")[0]

    assert list(OPTIONS) == re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
