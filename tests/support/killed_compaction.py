"""A compaction that is killed before its k-th operation on the store, for every k in turn.

Run as a program with a URL and a step: for k = 1, 1 + step, ... a process of its own makes a
dataset at ``URL/k``, compacts it and sends itself SIGKILL before its k-th operation; the last one
lives. Prints the number of the last.
"""

from __future__ import annotations

import os
import signal
import sys

from headrace.storage import CompactOptions, compact, open_store
from support.killed_writer import mortal
from support.shards import numbered_batch, write_shards_of

SAMPLES, SHARDS = 240, 24
OPTIONS = CompactOptions(shard_bytes=8192, block_bytes=1024)
_MOST_OPERATIONS = 400


def write_small_shards(url: str) -> None:
    """Write the dataset that is to be compacted."""
    each = SAMPLES // SHARDS
    write_shards_of(url, [numbered_batch(at, at + each) for at in range(0, SAMPLES, each)])


def _die_at(url: str, fatal: int) -> int:
    """Return the status of a process that is killed before its operation ``fatal``."""
    child = os.fork()
    if child == 0:
        write_small_shards(url)
        compact(mortal(open_store(url), fatal), options=OPTIONS, threads=2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Try every operation; return an exit code."""
    for fatal in range(1, _MOST_OPERATIONS, int(sys.argv[2])):
        status = _die_at(f"{sys.argv[1]}/{fatal}", fatal)
        if status == 0:
            sys.stdout.write(f"{fatal}\n")
            return 0
        if status != -signal.SIGKILL:
            return 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
