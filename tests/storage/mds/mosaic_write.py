"""Write the corpus with Mosaic's own writer: ``mosaic_write.py OUT COMPRESSION HASHES SAMPLES``.

Runs where mosaicml-streaming is installed, not in the environment of the tests.
"""

from __future__ import annotations

import sys

from mds_corpus import COLUMNS, corpus_sample  # type: ignore[import-not-found] # beside this script
from streaming import MDSWriter  # type: ignore[import-not-found] # in an environment of its own


def main(out: str, compression: str, hashes: str, sample_count: str) -> None:
    """Write it, several samples a shard."""
    with MDSWriter(
        out=out,
        columns=COLUMNS,
        compression=compression or None,
        hashes=sorted(hashes.split(",")) if hashes else [],
        size_limit=1 << 15,
    ) as writer:
        for i in range(int(sample_count)):
            writer.write(corpus_sample(i))


if __name__ == "__main__":
    main(*sys.argv[1:])
