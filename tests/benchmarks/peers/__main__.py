"""Read the same samples by headrace and by others, turn by turn, and print what each reaches.

    PYTHONPATH=tests:examples python -m benchmarks.peers --json docs/performance/peers.json

The four kinds of samples of `headrace bench` are written in each library's own form. Then, for each
kind, every library reads in a process of its own, shuffled, from files that were read into the page
cache right before, and hands batches to a loop that does nothing with them: tensors or arrays of
numbers, lists of ``bytes`` or ``str``. Where a library has workers, a short trial finds its best
number of them. Rounds are interleaved, the first library of each is the next one's second, and
medians count. A second part reads for some seconds from a store with the latencies of S3
(`support.slow_store`), through empty caches: 2 GiB of samples, of which each reader may keep a
fifth. A third opens the order of large epochs. With ``--photos FOLDER`` of JPEG files, readers
that can do it read those too, and decode, crop and flip them. ``--share 0.05 --rounds 1`` shows in
a minute or two that all of it runs; the first run also installs the libraries. A file of figures
keeps those of kinds and parts that a run does not measure, so that short runs can be put together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.compare import Effort, compare
from benchmarks.peers.kinds import PHOTOS, SAMPLE_COUNTS
from benchmarks.peers.page import tables

_PARTS = ("local", "s3", "order")


def main() -> None:
    """Measure, print the tables, and write the figures."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="*", choices=[*SAMPLE_COUNTS], default=[*SAMPLE_COUNTS], help="kinds"
    )
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="of JPEG files, a fifth kind")
    parser.add_argument("--parts", nargs="*", choices=_PARTS, default=_PARTS)
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts")
    parser.add_argument("--seconds", type=float, default=0.8, help="of each measurement")
    parser.add_argument("--share", type=float, default=1.0, help="of the samples, in (0, 1]")
    parser.add_argument("--minutes", type=float, default=25.0, help="no round begins after them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    given = parser.parse_args()
    effort = Effort(
        rounds=given.rounds,
        seconds=given.seconds,
        share=given.share,
        end_at=time.monotonic() + 60 * given.minutes,
        photos=given.photos,
    )
    kinds = given.only if given.photos is None else [*given.only, PHOTOS]
    with tempfile.TemporaryDirectory() as folder:
        found = compare(kinds, given.parts, effort, Path(folder), show=_show)
    if given.json is not None:
        if given.json.exists():
            found = together(json.loads(given.json.read_text()), found)
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(tables(found))


def together(known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a run, and those of earlier runs of what it did not measure."""
    parts: dict[str, Any] = {}
    for part in _PARTS:
        rows = found.get(part) or []
        # Kinds of samples, or numbers of them where orders are opened.
        measured = [row.get("kind", row.get("samples")) for row in rows]
        kept = [
            row
            for row in known.get(part, [])
            if row.get("kind", row.get("samples")) not in measured
        ]
        parts[part] = [*kept, *rows]
    kinds = {**known.get("kinds", {}), **found["kinds"]}
    return {**known, **found, "kinds": kinds, **parts}


def _show(line: str) -> None:
    print(f"{time.strftime('%X')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
