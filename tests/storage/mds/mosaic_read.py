"""Print what Mosaic's own dataset class reads: ``mosaic_read.py FOLDER [HASH]``, one JSON a sample.

Runs where mosaicml-streaming is installed, not in the environment of the tests.
"""

from __future__ import annotations

import json
import sys
import tempfile

from mds_corpus import rendered  # type: ignore[import-not-found] # beside this script
from streaming import StreamingDataset  # type: ignore[import-not-found] # as in mosaic_write.py


def main(folder: str, hash_name: str | None = None) -> None:
    """Read it in order, through the cache that a training would have, with a hash checked."""
    with tempfile.TemporaryDirectory() as cache:
        dataset = StreamingDataset(
            remote=folder,
            local=cache,
            shuffle=False,
            batch_size=1,
            allow_unsafe_types=True,
            validate_hash=hash_name,
        )
        for i in range(len(dataset)):
            sys.stdout.write(json.dumps(rendered(dataset[i])) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
