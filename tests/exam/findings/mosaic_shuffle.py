"""MosaicML Streaming: a resume without shuffle=True mixes two orders, and says nothing.

``.build/peers/bin/python tests/exam/findings/mosaic_shuffle.py``
"""

import tempfile
from typing import Any

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # type: ignore[import-not-found]
from streaming.base.util import clean_stale_shared_memory  # type: ignore[import-not-found]


def _loader(folder: str, *, shuffle: bool) -> Any:
    clean_stale_shared_memory()
    dataset = StreamingDataset(
        remote=folder, local=tempfile.mkdtemp(), shuffle=shuffle, shuffle_seed=7, batch_size=10
    )
    return StreamingDataLoader(dataset, batch_size=10)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(out=folder, columns={"id": "int"}) as writer:
            for sample in range(1000):
                writer.write({"id": sample})
        loader = _loader(folder, shuffle=True)
        before: list[int] = []
        for batch in loader:
            before += batch["id"].tolist()
            if len(before) == 500:
                break
        state = loader.state_dict()
        del loader

        resumed = _loader(folder, shuffle=False)
        resumed.load_state_dict(state)
        after = [sample for batch in resumed for sample in batch["id"].tolist()]
        print(f"{1000 - len({*before, *after})} of 1,000 samples are lost")
