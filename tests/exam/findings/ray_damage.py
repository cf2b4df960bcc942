"""Ray Data: a byte of a sample that has changed in a Parquet file is read as it is.

Parquet's checksums of pages are neither written nor verified unless it is asked for.
``.build/exam-ray/bin/python tests/exam/findings/ray_damage.py``
"""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import ray.data

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.parquet"
        values = [bytes([sample]) * 1000 for sample in range(100)]
        pq.write_table(pa.table({"x": values}), path, compression="none", use_dictionary=False)
        stored = bytearray(path.read_bytes())
        stored[stored.index(values[50]) + 500] ^= 0xFF
        path.write_bytes(stored)

        rows = ray.data.read_parquet(str(path)).take_all()
        altered = sum(row["x"] not in values for row in rows)
        print(f"{len(rows)} samples are read, {altered} of them with another byte")
