"""Write what `exam.waits` found into docs/exam.md, and draw it.

    PYTHONPATH=tests:examples python -m exam.waits_page docs/exam/waits.json docs/exam.md

The picture is an SVG of rectangles and texts, beside the figures: the same for the same figures.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from exam.libraries import LIBRARIES
from support.marked import replace_marked

BEGIN, END = "<!-- waits: written by tests/exam/waits_page.py -->", "<!-- end of waits -->"
_TITLES = {"rows": "rows, 4 KiB", "tokens": "tokens, 8 KiB", "images": "JPEG files, 64 KiB"}
_FIGURES = ("share", "longest_s", "first_s", "cpu_us", "mib")
# What is added to the name of a library that reads without workers.
_ALONE = ", 0 workers"
_ERROR = 120  # characters
_LEFT, _WIDE, _HIGH, _HEAD = 230, 400, 16, 34

Found = Mapping[str, Mapping[str, Any]]


def main() -> None:
    """Replace what stands between the marks of a page, and draw the picture."""
    figures, page = Path(sys.argv[1]), Path(sys.argv[2])
    found = json.loads(figures.read_text())
    replace_marked(page, BEGIN, END, written(found))
    figures.with_suffix(".svg").write_text(drawn(found))


def written(found: Found) -> str:
    """Return a table for each kind of samples, and why some loaders are in none."""
    lines: list[str] = []
    for kind, title in _TITLES.items():
        rows = [(loader, row) for each, loader, row in _rows(found) if each == kind]
        if not rows:
            continue
        lines += [
            f"| {title} | waiting | longest wait | first batch | processor a sample | MiB |",
            "|---|---|---|---|---|---|",
            *(_line(loader, row) for loader, row in rows if "not_read" not in row),
            "",
        ]
    return "\n".join([*lines, *_not_read(found), _rounds(found)])


def _line(loader: str, row: Mapping[str, Any]) -> str:
    if "error" in row:
        said = " ".join(row["error"].split())[:_ERROR]
        return f"| {loader} | failed: {said} | | | | |"
    share, longest, first, cpu, mib = (statistics.median(row[key]) for key in _FIGURES)
    return (
        f"| {loader} | {100 * share:.1f} % | {1000 * longest:.0f} ms | "
        f"{first:.1f} s | {cpu:.0f} µs | {mib:,.0f} |"
    )


def _not_read(found: Found) -> Iterator[str]:
    """Yield which loaders were not measured, together where the reason is the same."""
    loaders: dict[str, dict[str, None]] = {}
    for _, loader, row in _rows(found):
        if "not_read" in row:
            loaders.setdefault(row["not_read"], {})[loader] = None
    reasons = [f"{', '.join(names)} ({reason})" for reason, names in loaders.items()]
    if reasons:
        yield f"Not measured: {'; '.join(reasons)}.\n"


def _rounds(found: Found) -> str:
    """Say how many rounds there were: once, or of each kind and store where they differ."""
    counts: dict[str, list[int]] = {}
    for kind, title, row in _rows(found):
        if "share" in row:
            store = "cold" if title.endswith("cold") else "warm"
            counts.setdefault(f"{_TITLES[kind].split(',')[0]} {store}", []).append(
                len(row["share"])
            )
    modes = {what: statistics.mode(each) for what, each in counts.items()}
    if len(set(modes.values())) == 1:
        return f"Medians of {next(iter(modes.values()))} interleaved rounds."
    of_each = ", ".join(f"{what} {count}" for what, count in modes.items())
    return f"Medians of interleaved rounds: {of_each}."


def drawn(found: Found) -> str:
    """Return a picture: for each kind of samples a bar for each loader."""
    parts: list[str] = []
    y, last = 0, ""
    for kind, title, row in _rows(found):
        if "not_read" in row:
            continue
        if kind != last:
            y += _HEAD
            parts.append(f'<text x="0" y="{y - 8}" font-weight="bold">{_TITLES[kind]}</text>')
            last = kind
        share = statistics.median(row["share"]) if "share" in row else 0.0
        wide = share * _WIDE
        color = "#1f6feb" if title.startswith("headrace") else "#8b949e"
        said = f"{100 * share:.1f} %" if "share" in row else "failed"
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(title)}</text>',
            f'<rect x="{_LEFT}" y="{y + 2}" width="{wide:.1f}" height="12" fill="{color}"/>',
            f'<text x="{_LEFT + 6 + wide:.1f}" y="{y + 12}">{said}</text>',
        ]
        y += _HIGH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDE + 70} {y + 8}" '
        'font-family="sans-serif" font-size="11" fill="#768390">\n'
        "<title>Share of the time that a loop with steps of 20 ms waits for batches</title>\n"
        + "".join(f"{part}\n" for part in parts)
        + "</svg>\n"
    )


def _rows(found: Found) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield kind, title and figures of each row."""
    for kind in _TITLES:
        for store in ("warm", "cold"):
            for library in LIBRARIES:
                name = library.entry.rpartition(".")[2]
                for more in ("", _ALONE):
                    row = found.get(kind, {}).get(f"{name}{more}", {}).get(store)
                    if row is not None:
                        cold = ", cold" if store == "cold" else ""
                        yield kind, f"{library.name}{more}{cold}", row


if __name__ == "__main__":
    main()
