"""Draw the rooms of each package and what they import, from the imports themselves.

``python -m support.rooms`` writes the drawing into CONTRIBUTING.md; a test holds it to the code.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

PACKAGES = (
    "headrace.page",
    "headrace.cli",
    "headrace.loadtest",
    "headrace.bench",
    "headrace.client",
    "headrace.server",
    "headrace.converter",
    "headrace.storage",
    "headrace.ring",
    "headrace.lane",
    "headrace.payload",
    "headrace.order",
    "headrace.v1",
    "headrace.arguments",
    "headrace.caches",
    "headrace.errors",
)
ROOMY = (
    "headrace.server",
    "headrace.client",
    "headrace.converter",
    "headrace.storage",
    "headrace.storage.store",
    "headrace.order",
    "headrace.cli",
    "headrace.loadtest",
    "headrace.page",
)
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
FIRST, LAST = "<!-- rooms: drawn by tests/support/rooms.py -->", "<!-- end of rooms -->"


def drawing() -> str:
    """Return the drawing of all packages as Markdown: an arrow points to what is imported."""
    return "\n\n".join([_packages(), *(_package(name) for name in ROOMY)])


def drawn() -> str:
    """Return the drawing that the page holds."""
    return PAGE.read_text().split(FIRST)[1].split(LAST)[0].strip()


def main() -> None:
    """Write the drawing into its page."""
    page = PAGE.read_text()
    before, rest = page.split(FIRST)
    PAGE.write_text(f"{before}{FIRST}\n\n{drawing()}\n\n{LAST}{rest.split(LAST)[1]}")


def _packages() -> str:
    graph = grimp.build_graph(PACKAGES[0], *PACKAGES[1:], cache_dir=None)
    imports = _between(graph, PACKAGES)
    # A conversion hands out readers: the one import between siblings, allowed by name in pyproject.
    imports["converter"].discard("client")
    return "\n".join(["### The packages", "", *_mermaid(imports)])


def _package(name: str) -> str:
    graph = grimp.build_graph(".".join(name.split(".")[:2]), cache_dir=None)
    rooms = [child for child in graph.find_children(name) if graph.find_children(child)]
    imports = _between(graph, rooms)
    rows = [f"| `{room}/` | {_purpose(name, room)} |" for room in _from_the_top(imports)]
    table = ["| room | what it is for |", "|---|---|", *rows]
    arrows = [*_mermaid(imports), ""] if any(imports.values()) else []
    return "\n".join([f"### `{name}`", "", *arrows, *table])


def _mermaid(imports: Mapping[str, set[str]]) -> list[str]:
    arrows = [
        f"  {room} --> {below}"
        for room in _from_the_top(imports)
        for below in _nearest(room, imports)
    ]
    return ["```mermaid", "graph TD", *arrows, "```"]


def _from_the_top(imports: Mapping[str, set[str]]) -> list[str]:
    floors = _floors(imports)
    return sorted(imports, key=lambda room: (-floors[room], room))


def _between(graph: grimp.ImportGraph, packages: Iterable[str]) -> dict[str, set[str]]:
    """Return for each package, by the last part of its name, which of the others it imports."""
    names = sorted(packages)
    return {
        _last(name): {
            _last(other)
            for other in names
            if other != name
            and graph.direct_import_exists(importer=name, imported=other, as_packages=True)
        }
        for name in names
    }


def _last(name: str) -> str:
    return name.rsplit(".", 1)[1]


def _floors(imports: Mapping[str, set[str]]) -> dict[str, int]:
    """Return how many rooms at most lie below each; there are no circles."""
    floors: dict[str, int] = {}
    while len(floors) < len(imports):
        ready = [r for r in imports if r not in floors and imports[r] <= floors.keys()]
        assert ready, f"rooms import each other in a circle: {sorted(imports.keys() - floors)}"
        floors.update({r: 1 + max((floors[b] for b in imports[r]), default=-1) for r in ready})
    return floors


def _nearest(room: str, imports: Mapping[str, set[str]]) -> list[str]:
    """Return what a room imports, less what it reaches through another of its imports."""
    through = {far for near in imports[room] for far in _reached(imports[near], imports)}
    return sorted(imports[room] - through)


def _reached(rooms: Iterable[str], imports: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(rooms)
    while waiting:
        room = waiting.pop()
        if room not in found:
            found.add(room)
            waiting += imports[room]
    return found


def _purpose(name: str, room: str) -> str:
    spec = importlib.util.find_spec(f"{name}.{room}")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text().split('"""')[1]
    return text.split("\n")[0].strip()


if __name__ == "__main__":
    main()
