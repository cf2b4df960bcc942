"""docs/client.md and the docstring name every option there is, and nothing else."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

from headrace.client import RemoteDataset, Transport
from headrace.client.options.settings import DEFAULT_MAX_BATCH_BYTES, DEFAULT_PREFETCH_BYTES

PAGE = Path(__file__).parents[3] / "docs" / "client.md"
OPTIONS = dict(list(inspect.signature(RemoteDataset.__init__).parameters.items())[1:])

_MIB_A_GIB = 1 << 10


def _rows(heading: str = "## Every option\n") -> list[list[str]]:
    _, _, rest = PAGE.read_text().partition(heading)
    table = [line for line in re.split(r"\n##+ ", rest)[0].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def _as_documented(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if default in (DEFAULT_PREFETCH_BYTES, DEFAULT_MAX_BATCH_BYTES) and default is not True:
        mib = default >> 20
        return f"`{mib >> 10} GiB`" if mib >= _MIB_A_GIB else f"`{mib} MiB`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default!r}`"


def test_the_page_has_every_option_with_its_default() -> None:
    """In the order of the signature, with the values that each may have."""
    wanted = [(f"`{name}`", _as_documented(each.default)) for name, each in OPTIONS.items()]

    assert wanted == [(name, default) for name, _, default, _ in _rows()]
    assert [] == [name for name, values, _, _ in _rows() if not values]


def test_the_page_has_every_option_of_a_transport() -> None:
    """With its default, as those of the dataset."""
    wanted = [(f"`{each.name}`", _as_documented(each.default)) for each in fields(Transport)]

    _, *rows = _rows("### Transport\n")
    assert wanted == [(name, default) for name, _, default, _ in rows]
    assert [] == [name for name, values, _, source in rows if not (values and source)]


def test_the_page_says_where_each_default_comes_from() -> None:
    """A measurement, a limit, or that it is arbitrary; only what has no default says nothing."""
    unexplained = [name for name, _, default, source in _rows() if not source]

    assert unexplained == [name for name, _, default, _ in _rows() if default == "required"]


def test_the_docstring_has_every_option() -> None:
    """In the order of the signature, so that `help` finds what an editor shows."""
    arguments = inspect.getdoc(RemoteDataset.__init__) or ""
    _, _, arguments = arguments.partition("Args:\n")
    arguments = arguments.partition("\n\n")[0]

    assert list(OPTIONS) == re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
