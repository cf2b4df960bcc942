"""The shape of the repository that packaging depends on."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.rooms import drawing, drawn

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = ("proto", "storage", "server", "client", "converter", "tools")


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_headrace_stays_a_namespace_package(root: str) -> None:
    """An `__init__.py` in a source root would hide the other roots' packages."""
    found = [*(ROOT / root).glob("__init__.py"), *(ROOT / root / "headrace").glob("__init__.py")]

    assert [] == found


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_a_source_root_holds_headrace_alone(root: str) -> None:
    """Whatever else lay there would land at the top of site-packages, where Spark looks too."""
    found = {path.name for path in (ROOT / root).iterdir() if path.name != "__pycache__"}
    for_spark = {"pyspark_headrace"} if root == "converter" else set()

    assert {"headrace"} | for_spark == found


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
    named = re.findall(r"`((?:proto|storage|server|client|converter|tools)/[\w/.]+)`", page)

    assert len(named) > 10
    assert [] == [path for path in named if not (ROOT / path).exists()]


_MOST_LINES, _MOST_PARAMETERS = 60, 8
# What users call takes what they may say.
_ENTRY_POINTS = {
    "client/headrace/client/api/dataset.py: RemoteDataset.__init__",
    "client/headrace/client/api/numpy_dataset.py: NumpyDataset.__init__",
    "client/headrace/client/reader/reader.py: BatchReader.__init__",
    "converter/headrace/converter/api/convert_files.py: convert_files",
    "converter/headrace/converter/api/make_converter.py: make_converter",
    "converter/headrace/converter/api/write_shards.py: write_shards",
    "tools/headrace/compat/streaming/dataset.py: StreamingDataset.__init__",
    "tools/headrace/compat/streaming/streams.py: Stream.__init__",
}


@dataclass(frozen=True)
class _Function:
    name: str
    head_lines: int
    body_lines: int
    parameter_count: int
    is_command: bool

    @property
    def may_take_many(self) -> bool:
        return self.is_command or self.name in _ENTRY_POINTS

    @property
    def lines(self) -> int:
        # Where parameters may be many they do not count.
        return self.body_lines if self.may_take_many else self.head_lines + self.body_lines


def _functions(path: Path) -> Iterator[_Function]:
    tree = ast.parse(path.read_text())
    classes = {
        id(method): node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        own = named[1:] if named and named[0].arg in {"self", "cls"} else named
        owner = f"{classes[id(node)]}." if id(node) in classes else ""
        yield _Function(
            f"{path.relative_to(ROOT)}: {owner}{node.name}",
            node.body[0].lineno - node.lineno,
            (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0,
            len(own),
            any(ast.unparse(each).startswith("click.") for each in node.decorator_list),
        )


def _all_functions() -> list[_Function]:
    return [
        function
        for root in SOURCE_ROOTS
        for path in sorted((ROOT / root / "headrace").rglob("*.py"))
        if "_pb2" not in path.name
        for function in _functions(path)
    ]


def test_no_function_is_long() -> None:
    """Each has at most 60 lines, its docstring aside."""
    found = _all_functions()

    assert len(found) > 3000
    assert [] == [each.name for each in found if each.lines > _MOST_LINES]


def test_no_function_takes_many_parameters() -> None:
    """At most 8, but for commands, for what users call and for kernels, which are listed."""
    many = [each for each in _all_functions() if each.parameter_count > _MOST_PARAMETERS]

    assert [] == [each.name for each in many if not each.may_take_many]
    assert _ENTRY_POINTS <= {each.name for each in many}


def test_nothing_draws_from_the_random_numbers_of_a_loop() -> None:
    """A loop that gives Python or NumPy a seed keeps its draws, and its ranks their own jitter."""
    own = {"Random", "SystemRandom", "default_rng", "Generator", "SeedSequence", "PCG64"}
    texts = {
        path.relative_to(ROOT): path.read_text()
        for root in SOURCE_ROOTS
        for path in sorted((ROOT / root / "headrace").rglob("*.py"))
    }
    drawn = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        # A variable may have the name of a module that is not imported.
        and ast.unparse(node.value) in {"np.random", "random" if "import random\n" in text else ""}
        and node.attr not in own
    ]

    assert not drawn
