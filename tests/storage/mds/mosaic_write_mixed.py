"""Write arrays of any type and shape with Mosaic's writer: ``mosaic_write_mixed.py FOLDER NPZ``.

Runs where mosaicml-streaming is installed, not in the environment of the tests.
"""

from __future__ import annotations

import sys

import numpy as np
from streaming import MDSWriter  # type: ignore[import-not-found] # as in mosaic_write.py


def main(folder: str, arrays: str) -> None:
    """Write the arrays of a file, in the order of their names, as one column."""
    with (
        np.load(arrays) as found,
        MDSWriter(out=folder, columns={"x": "ndarray"}, hashes=["sha1"], size_limit=2000) as writer,
    ):
        for name in sorted(found.files):
            writer.write({"x": found[name]})


if __name__ == "__main__":
    main(*sys.argv[1:])
