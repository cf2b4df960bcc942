"""Pages of the documentation with a part that a script writes, between two comments."""

from __future__ import annotations

from pathlib import Path


def replace_marked(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marks of a page; the marks stay."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
