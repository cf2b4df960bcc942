"""Ask a running server for a dataset, in a process of its own.

gRPC may hang in processes that are forked from one that has used it, and DataLoader forks its
workers from the process that made the dataset.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from headrace.client import Deadlines, fetch_dataset
from headrace.client.options.access import access_of
from headrace.errors import HeadraceError

_ASK_S = 120.0


@dataclass(frozen=True, slots=True)
class Served:
    """A dataset on a server.

    Attributes:
        fingerprint: Identifies its content.
        sample_count: Its samples.
        shard_count: Its shards.
        raw_bytes: The bytes of its samples.
    """

    fingerprint: str
    sample_count: int
    shard_count: int
    raw_bytes: int


def ask(target: str, name: str) -> Served:
    """Return the dataset of a name.

    Raises:
        RuntimeError: The server does not answer, or has no such dataset.
    """
    command = [sys.executable, "-m", __name__, target, name]
    done = subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, timeout=_ASK_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"headrace://{target}/{name}: {done.stderr.strip()[-2000:]}")
    return Served(**json.loads(done.stdout))


def _main(target: str, name: str) -> None:
    try:
        found = fetch_dataset(target, name, deadlines=Deadlines(), access=access_of(None))
    except HeadraceError as error:
        sys.exit(str(error))
    facts = {field: getattr(found, field) for field in Served.__slots__}
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    _main(*sys.argv[1:])
