"""Small MDS datasets of lines, as Mosaic's writers make them but for the files of offsets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

COLUMNS = {"ratio": "float", "number": "int", "text": "str"}
ROWS: list[dict[str, Any]] = [
    {"number": 2**62, "ratio": -0.0, "text": "Blüte"},
    {"number": -7, "ratio": math.inf, "text": ""},
    {"number": 0, "ratio": 5e-324, "text": 'a "quote", \t and \\'},
]
MARKS = {"csv": ",", "tsv": "\t", "xsv": "||"}


def lines_of(form: str, newline: str) -> str:
    """Return `ROWS` as a shard of a format."""
    if form == "json":
        return "".join(json.dumps(row, sort_keys=True) + newline for row in ROWS)
    mark = MARKS[form]
    names = sorted(COLUMNS)
    rows = [mark.join(str(row[name]).replace(mark, ";") for name in names) for row in ROWS]
    return "".join(line + newline for line in [mark.join(names), *rows])


def write_lines(
    folder: Path, form: str, *, newline: str = "\n", content: bytes | None = None
) -> Path:
    """Write a dataset of one shard, and return its path; ``content`` in place of `ROWS`."""
    content = lines_of(form, newline).encode() if content is None else content
    name = f"shard.00000.{form}"
    shard: dict[str, object] = {
        "version": 2,
        "format": form,
        "samples": len(ROWS),
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "newline": newline,
        "raw_data": {"basename": name, "bytes": len(content), "hashes": {}},
        "raw_meta": {"basename": f"{name}.meta", "bytes": 100, "hashes": {}},
        "zip_data": None,
        "zip_meta": None,
    }
    if form == "json":
        shard["columns"] = COLUMNS
    else:
        names = sorted(COLUMNS)
        shard |= {"column_names": names, "column_encodings": [COLUMNS[name] for name in names]}
    if form == "xsv":
        shard["separator"] = MARKS[form]
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    (folder / name).write_bytes(content)
    return folder / name
