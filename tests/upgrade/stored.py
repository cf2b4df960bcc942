"""What a release leaves behind for those who run it: schema, a dataset, and tokens.

    PYTHONPATH=tests:examples python -m upgrade.stored 0.1.0     # once a release, then commit

Each release has a folder in ``golden/`` that is never changed: its schema as a set of descriptors,
shards with their manifest, and tokens with the sample ids of the batches that must follow them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from headrace.v1 import shard_service_pb2 as pb
from support.datasets import small_table, write_dataset
from support.running import channel_of
from support.served import Transcript, messages_of, read, transcript

GOLDEN = Path(__file__).parent / "golden"
_ROOT = Path(__file__).parents[2]
_SAMPLES = 120
_ORDERS = (
    pb.OrderSpec(seed=1),
    pb.OrderSpec(seed=2, shuffle=False),
    pb.OrderSpec(seed=3, shuffle_bytes=0),
    pb.OrderSpec(seed=4, shuffle_samples=32, lanes=2, unit=12),
)
_STOPS = (0, 3, 9)
"""Batches of the epoch after which a token is kept; the last is that of the epoch's end."""


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token, and what must follow it.

    Attributes:
        token: In hexadecimal.
        epoch: Of the next batch.
        next_ids: Sample ids of the next two batches.
    """

    token: str
    epoch: int
    next_ids: list[list[int]]


def stored_tokens(folder: Path) -> list[StoredToken]:
    """Read the tokens of a release."""
    lines = (folder / "tokens.jsonl").read_text().splitlines()
    return [StoredToken(**json.loads(line)) for line in lines]


def follow(channel: grpc.Channel, token: bytes) -> Transcript:
    """Read on after a token, as the rank that is alone."""
    return read(
        channel,
        pb.ReadBatchesRequest(
            dataset="ds", resume_token=token, world_size=1, epoch_count=2, with_ids=True
        ),
    )


def _store(folder: Path) -> None:
    folder.mkdir(parents=True)
    buf = Path(sys.executable).parent / "buf"
    subprocess.run([buf, "build", "-o", folder / "schema.binpb"], cwd=_ROOT, check=True)
    url = folder / "dataset"
    write_dataset(str(url), small_table(_SAMPLES), shard_samples=[50, 70])
    with channel_of({"ds": str(url)}) as channel, (folder / "tokens.jsonl").open("w") as output:
        for order in _ORDERS:
            request = pb.ReadBatchesRequest(
                dataset="ds",
                order=order,
                global_batch_size=12,
                world_size=1,
                epoch_start=pb.EpochStart(),
                epoch_count=2,
                with_ids=True,
            )
            whole = transcript(messages_of(channel, request))
            for stop in _STOPS:
                following = whole.batches[stop + 1 :][:2]
                found = StoredToken(
                    whole.tokens[stop].hex(),
                    following[0].header.epoch,
                    [batch.ids for batch in following],
                )
                output.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    _store(GOLDEN / sys.argv[1])
