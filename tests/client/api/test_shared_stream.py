"""Claims about ranks that share a stream: they get the same, and nobody hangs.

How it could go wrong: a rank that waits for ever for one that is lost, or has another place; an
error that only the rank that reads gets; batches of another rank's place.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.client import Batch, BatchLoader, NumpyDataset, RemoteDataset, Sharding
from headrace.errors import BadArgumentError
from support.datasets import write_rows
from support.running import server_of

JOB = Path(__file__).parents[2] / "support" / "share_job.py"


def test_both_get_the_same_and_every_error(tmp_path: Path) -> None:
    """Batches, a failed read, different places, and the end of the rank that reads."""
    write_rows(str(tmp_path / "d"), sample_count=64, width=2)
    with server_of({"d": str(tmp_path / "d")}) as server:
        job = [sys.executable, str(JOB), str(tmp_path), server.address]
        subprocess.run(job, check=False, timeout=60)
        with RemoteDataset(server.address, "d", batch_size=8, epochs=2) as dataset:
            wanted = [[(2 * batch["x"]).tolist() for batch in dataset] for _ in range(2)]
        with RemoteDataset(server.address, "d", batch_size=8, epochs=1) as dataset:
            once = [batch["x"].tolist() for batch in dataset]
    found: list[Any] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]

    for each in found:
        assert wanted == each["_rows"]["batches"]
        assert "shared: rank 0 reads and broadcasts to the ranks 0, 1" in each["_rows"]["how"]
        assert "(by a broadcast, since Transport(hedge=…) asks a second server" in each["_auto"]
        assert each["_gone"].startswith("DatasetNotFoundError")
        assert [
            *(once[0], "StageFailedError", *once[1:]),
            *["DatasetNotFoundError"] * 2,
        ] == each["_again"]
        assert "columns is () on rank 0, but ('x',) on rank 1" in each["_unlike"]
        assert "rank 0 at epoch 0, position 0, rank 1 at epoch 0, position 8" in each["_apart"]
    assert found[1]["_dead"].startswith("ServerUnreachableError: a rank that shares")


def test_a_rank_alone_reads_alone_and_says_why(tmp_path: Path) -> None:
    """With ``auto``, until others come; ``broadcast`` is refused."""
    write_rows(str(tmp_path / "d"), sample_count=64, width=2)
    with server_of({"d": str(tmp_path / "d")}) as server:

        def dataset(share: Any) -> RemoteDataset:
            sharding = Sharding(global_batch_size=8, share=share)
            return RemoteDataset(
                *(server.address, "d"), rank=0, world_size=2, mesh={"tp": 2}, sharding=sharding
            )

        with dataset("auto") as alone:
            next(iter(alone))
            why = alone.stats().transport_reason
        with dataset("broadcast") as together, pytest.raises(BadArgumentError, match="distributed"):
            next(iter(together))

    assert why == "shared: this process reads for this host"


def test_workers_read_alone_and_call_the_function(tmp_path: Path) -> None:
    """With ``auto``; ``broadcast`` is refused there, too."""
    write_rows(str(tmp_path / "d"), sample_count=64, width=2)
    with server_of({"d": str(tmp_path / "d")}) as server:

        def loader(share: Any, **options: Any) -> BatchLoader[Any]:
            sharding = Sharding(share=share)
            return BatchLoader(
                RemoteDataset(
                    *(server.address, "d"), batch_size=8, epochs=1, sharding=sharding, **options
                ),
                num_workers=1,
            )

        with loader("auto", transform=_size) as alone:
            assert [8] * 8 == list(alone)
        with loader("broadcast") as together, pytest.raises(BadArgumentError, match="worker"):
            next(iter(together))


def _size(batch: Batch) -> int:
    return batch.sample_count


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sharding(share=cast("Any", "rings")), r"sharding\.share"),
        (
            lambda: NumpyDataset("x:1", "d", batch_size=1, sharding=Sharding(share="broadcast")),
            "a NumpyDataset has no",
        ),
        (
            lambda: RemoteDataset(
                "x:1", "d", batch_size=1, device="cpu", sharding=Sharding(share="broadcast")
            ),
            "device='cpu' and ranks that share by a broadcast",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(make: Any, words: str) -> None:
    """Before a server is asked."""
    with pytest.raises(BadArgumentError, match=words):
        make()
