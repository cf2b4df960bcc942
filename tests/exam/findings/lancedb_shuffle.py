"""LanceDB: a resume without shuffling mixes two orders, and says nothing.

Its documentation asks for the same shuffle. ``.build/exam/bin/python
tests/exam/findings/lancedb_shuffle.py``
"""

import tempfile

import lancedb
import pyarrow as pa
from lancedb.streaming import StreamingDataLoader, StreamingDataset

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        table = lancedb.connect(folder).create_table("samples", pa.table({"id": range(1000)}))
        dataset = StreamingDataset(table, num_splits=10, shuffle=True, shuffle_seed=7)
        before: list[int] = []
        for batch in StreamingDataLoader(dataset, batch_size=10):
            before += batch["id"].tolist()
            if len(before) == 500:
                break
        state = dataset.state_dict()

        resumed = StreamingDataset(table, num_splits=10, shuffle=False, shuffle_seed=7)
        resumed.load_state_dict(state)
        after = [
            sample
            for batch in StreamingDataLoader(resumed, batch_size=10)
            for sample in batch["id"].tolist()
        ]
        print(f"{1000 - len({*before, *after})} of 1,000 samples are lost, and as many come twice")
