"""One rank of a job: for each line of its input, it reads a new dataset and prints its samples.

Run as a program with a URL, and the rank in the launcher's variables.
"""

from __future__ import annotations

import sys
from contextlib import closing

from headrace.client import RemoteDataset, Sharding


def main() -> int:
    """Read until the input ends."""
    for _ in sys.stdin:
        dataset = RemoteDataset(
            None,
            sys.argv[1],
            end="uneven",
            epochs=1,
            shuffle=False,
            sharding=Sharding(global_batch_size=10),
        )
        with closing(dataset):
            sys.stdout.write(f"{sum(batch.sample_count for batch in dataset)}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
