"""WebDataset: a byte of a sample that has changed in a tar file is read as it is.

Tar files have checksums of their headers alone.
``.build/exam/bin/python tests/exam/findings/webdataset_damage.py``
"""

import tempfile
from pathlib import Path

import webdataset as wds

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "samples.tar"
    with wds.TarWriter(str(path)) as writer:
        for sample in range(100):
            writer.write({"__key__": f"{sample:08d}", "bin": bytes([sample]) * 1000})
    stored = bytearray(path.read_bytes())
    stored[stored.index(bytes([50]) * 1000) + 500] ^= 0xFF
    path.write_bytes(stored)

    values = [value for (value,) in wds.WebDataset(str(path), shardshuffle=False).to_tuple("bin")]
    altered = sum(value != bytes([sample]) * 1000 for sample, value in enumerate(values))
    print(f"{len(values)} samples are read, {altered} of them with another byte")
