"""Write lines with Mosaic's own writers: ``… OUT FORMAT COMPRESSION HASHES SAMPLES``.

Runs where mosaicml-streaming is installed, not in the environment of the tests.
"""

from __future__ import annotations

import sys

from mds_corpus import TEXT_COLUMNS, text_sample  # type: ignore[import-not-found] # beside this script
from streaming import (  # type: ignore[import-not-found] # in an environment of its own
    CSVWriter,
    JSONWriter,
    TSVWriter,
    XSVWriter,
)

_WRITERS = {"json": JSONWriter, "csv": CSVWriter, "tsv": TSVWriter, "xsv": XSVWriter}


def main(out: str, form: str, compression: str, hashes: str, sample_count: str) -> None:
    """Write them, several samples a shard."""
    options = {"separator": "||", "newline": "\r\n"} if form == "xsv" else {}
    with _WRITERS[form](
        out=out,
        columns=TEXT_COLUMNS,
        compression=compression or None,
        hashes=sorted(hashes.split(",")) if hashes else [],
        size_limit=1 << 8,
        **options,
    ) as writer:
        for i in range(int(sample_count)):
            writer.write(text_sample(i))


if __name__ == "__main__":
    main(*sys.argv[1:])
