"""LitData: a resume with four workers instead of two loses samples with drop_last=True.

``.build/peers/bin/python tests/exam/findings/litdata_workers.py``
"""

import tempfile
from typing import Any

from litdata import (  # type: ignore[import-not-found]
    StreamingDataLoader,
    StreamingDataset,
    optimize,
)


def _sample(number: int) -> dict[str, int]:
    return {"id": number}


def _loader(folder: str, workers: int) -> Any:
    dataset = StreamingDataset(folder, shuffle=True, drop_last=True, seed=7)
    return StreamingDataLoader(dataset, batch_size=10, num_workers=workers)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        optimize(_sample, [*range(1000)], output_dir=folder, chunk_size=50, num_workers=1)
        loader = _loader(folder, workers=2)
        before: list[int] = []
        for batch in loader:
            before += batch["id"].tolist()
            if len(before) == 510:
                break
        state = loader.state_dict()
        del loader

        resumed = _loader(folder, workers=4)
        resumed.load_state_dict(state)
        after = [sample for batch in resumed for sample in batch["id"].tolist()]
        print(f"{1000 - len({*before, *after})} of 1,000 samples are lost")
