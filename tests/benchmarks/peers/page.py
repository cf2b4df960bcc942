"""Turn the figures of a run into the tables and plots of `docs/readers.md`.

``PYTHONPATH=tests:examples python -m benchmarks.peers.page docs/performance/peers.json`` replaces
what stands between the two marks of the page, and draws the plots beside the figures.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
_PLOTS = {"local": "readers.svg", "s3": "readers-s3.svg", "order": "order.svg"}
_TITLES = {
    "rows": "Rows of 40 float32 with a label",
    "images": "Images of 64 KiB",
    "tokens": "Tokens, int32[2048]",
    "texts": "Texts of about 400 bytes",
    "photos": "Photographs, JPEG, decoded, cropped and resized to 224 x 224 with antialiasing",
}

Figures = Mapping[str, Any]


def tables(found: Figures) -> str:
    """Return everything as Markdown, without plots."""
    return "\n\n".join([_header(found), *(text for _, text in _parts(found))])


def page(text: str, found: Figures) -> str:
    """Return the page with the figures between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    parts = [_header(found)]
    for part, table in _parts(found):
        parts += [table, f"![{_ALT[part]}](performance/{_PLOTS[part]})"]
    return f"{before}{BEGIN}\n" + "\n\n".join(parts) + f"\n{END}{after}"


_ALT = {
    "local": "Samples a second of each reader, local files, on a logarithmic scale",
    "s3": "Samples a second of each reader, through empty caches from S3",
    "order": "Processor seconds to open the order of an epoch, by its samples",
}


def _parts(found: Figures) -> list[tuple[str, str]]:
    makers = {"local": _local, "s3": _s3, "order": _order}
    return [(part, make(found)) for part, make in makers.items() if found.get(part)]


def _header(found: Figures) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    versions = ", ".join(f"{name} {value}" for name, value in sorted(found["versions"].items()))
    return f"Machine: {machine}; medians of {found['rounds']} rounds.\n{versions}."


def _local(found: Figures) -> str:
    head = ["reader", "workers", "samples/s", "least, most", "of headrace", "first ms", "resume ms"]
    if any("processor_us" in row for row in found["local"]):
        head.append("processor µs a sample")
    return _kinds(found, "local", "## From local files", head)


def _s3(found: Figures) -> str:
    head = ["reader", "workers", "samples/s", "least, most", "of headrace", "first ms"]
    if any("processor_us" in row for row in found["s3"]):
        head.append("processor µs a sample")
    return _kinds(found, "s3", "## From a store with the latencies of S3, cold", head)


def _kinds(found: Figures, part: str, title: str, head: Sequence[str]) -> str:
    texts = [title]
    for kind, about in found["kinds"].items():
        rows = [row for row in found[part] if row["kind"] == kind]
        if not rows:
            continue
        ours = median(rows[0].get("rate", ()))
        cells = [[_cells(row, ours)[column] for column in head] for row in rows]
        samples = about["samples"] * (about.get("copies", 1) if part == "s3" else 1)
        size = samples * about["sample_bytes"] / (1 << 20)
        note = f"{samples:,} samples, {size:,.0f} MiB, batches of {about['batch_size']:,}"
        texts += [f"{_TITLES[kind]}: {note}.", _table(head, cells)]
    return "\n\n".join(texts)


def _cells(row: Figures, ours: float | None) -> Mapping[str, str]:
    name = str(row["library"])
    rates = row.get("rate", ())
    if rates and "error" in row:
        name += f" (failed after {len(rates)} rounds: {row['error']})"
    rate = median(rates)
    if rate is None:
        failed = {"samples/s": f"failed: {row.get('error', 'out of time')}"}
        return defaultdict(str, {"reader": name, **failed})
    return {
        "reader": name,
        "workers": str(row["workers"]),
        "samples/s": f"{rate:,.0f}",
        "least, most": f"{min(rates):,.0f}, {max(rates):,.0f}",
        "of headrace": f"{rate / ours:.2f}" if ours else "",
        "first ms": _ms(row.get("first_s", ())),
        "resume ms": _ms(row.get("resume_s", ())),
        "processor µs a sample": f"{median(row.get('processor_us', ())) or 0:,.1f}",
    }


def _order(found: Figures) -> str:
    head = ["samples", "by", "processor seconds", "grown MiB"]
    cells = [
        [
            f"{row['samples']:,}",
            row["library"],
            f"{statistics.median(row['seconds']):.4f}",
            f"{statistics.median(row['mib']):,.0f}",
        ]
        for row in found["order"]
    ]
    return "## Opening the order of an epoch\n\n" + _table(head, cells)


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ms(seconds: Sequence[float]) -> str:
    middle = median(seconds)
    return "-" if middle is None else f"{middle * 1e3:,.1f}"


def median(values: Sequence[float]) -> float | None:
    """Return the median, or None of nothing."""
    return statistics.median(values) if values else None


def main() -> None:
    """Write the page and the plots."""
    from benchmarks.peers.plots import draw  # noqa: PLC0415 - only here

    source = Path(sys.argv[1])
    found = json.loads(source.read_text())
    target = source.parents[1] / "readers.md"
    target.write_text(page(target.read_text(), found))
    for part, name in _PLOTS.items():
        if found.get(part):
            draw(part, found, source.parent / name)


if __name__ == "__main__":
    main()
