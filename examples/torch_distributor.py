"""Convert a DataFrame with Spark, then train on it with Spark's TorchDistributor.

    python examples/torch_distributor.py

The training function gets an address and a state, some hundred bytes whatever the size of the
data: it opens the dataset itself, and each process is sent its own share of every batch. The
training stops in the middle of an epoch and continues with another number of processes, and sees
the samples that a run without a stop would have seen.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.converter import write_shards
from headrace.server import ServerConfig, start_server

if TYPE_CHECKING:
    from headrace.client import Batch, RemoteDataset

SAMPLES = 2048
GLOBAL_BATCH_SIZE = 64
EPOCHS = 2


@dataclass(frozen=True)
class Result:
    """What a training gives back: small, too.

    Attributes:
        state: Where it stopped, for the training that continues.
        weights: Of the model.
        losses: A number a step: the mean over the first process's samples.
        sample_ids: Which samples all processes saw, the first process's first.
    """

    state: dict[str, object]
    weights: dict[str, list[float]]
    losses: list[float]
    sample_ids: list[int]


def rows(spark: SparkSession) -> DataFrame:
    """Make samples on a line: y is 3 a - 2 b + 1 and a little noise."""
    a, b = sf.rand(1) - 0.5, sf.rand(2) - 0.5
    frame = spark.range(SAMPLES).select(a.alias("a"), b.alias("b"))
    return frame.select(
        sf.array("a", "b").cast("array<float>").alias("x"),
        (3 * sf.col("a") - 2 * sf.col("b") + 1 + sf.randn(3) / 100).cast("float").alias("y"),
    )


def train(
    address: str,
    state: Mapping[str, object] | None = None,
    weights: Mapping[str, list[float]] | None = None,
    max_steps: int | None = None,
) -> Result:
    """Train on one of several processes: what TorchDistributor runs on each of them.

    Args:
        address: Of a headrace server.
        state: Of the training to continue with, from its `Result`.
        weights: Of its model, likewise.
        max_steps: Where to stop, unless the last epoch ends before.
    """
    # Imported where it is used, on the processes that train.
    import torch  # noqa: PLC0415
    from torch import distributed  # noqa: PLC0415
    from torch.nn.functional import mse_loss  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    from headrace.client import Order, RemoteDataset, Sharding  # noqa: PLC0415

    distributed.init_process_group("gloo")
    # Rank and world size are those of torch.distributed.
    dataset = RemoteDataset(
        address,
        "line",
        seed=7,
        epochs=EPOCHS,
        sharding=Sharding(global_batch_size=GLOBAL_BATCH_SIZE),
        order=Order(with_ids=True),
    )
    if state is not None:
        dataset.load_state_dict(state)
    line = torch.nn.Linear(2, 1)
    if weights is not None:
        line.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    model = DistributedDataParallel(line)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, seen = [], []
    for batch in steps(dataset, max_steps):
        x, y = torch.as_tensor(batch["x"]), torch.as_tensor(batch["y"])
        loss = mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        torch.autograd.backward(loss * batch.loss_scale)
        optimizer.step()
        losses.append(loss.item())
        seen += batch.sample_ids.tolist() if batch.sample_ids is not None else []
    everyone: list[list[int]] = [[] for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(everyone, seen)
    result = Result(
        state=dict(dataset.state_dict()),
        weights={name: value.tolist() for name, value in line.state_dict().items()},
        losses=losses,
        sample_ids=[sample for part in everyone for sample in part],
    )
    dataset.close()
    # Whoever lets go of the group last waits for its threads: a model would with Python's lock
    # held, which a thread of gloo may want (github.com/pytorch/pytorch/issues/56297).
    del model
    distributed.destroy_process_group()
    return result


def steps(dataset: RemoteDataset, max_steps: int | None) -> Iterator[Batch]:
    """Yield the batches of all epochs that are left, ``max_steps`` at most."""
    count = 0
    for _ in range(EPOCHS):
        for batch in dataset:
            yield batch
            count += 1
            if count == max_steps:
                return


def run(spark: SparkSession, url: str) -> tuple[Result, Result]:
    """Convert, train on one process for half an epoch, and continue with two.

    The driver serves the data here. On a cluster serve it where all executors reach it, and give
    TorchDistributor ``local_mode=False``; nothing else changes.

    Args:
        spark: The session.
        url: Where to write the dataset.
    """
    write_shards(rows(spark), url)
    with start_server(ServerConfig(datasets={"line": url}, listen="127.0.0.1:0")) as server:
        one = TorchDistributor(num_processes=1, local_mode=True, use_gpu=False)
        half = SAMPLES // GLOBAL_BATCH_SIZE // 2
        first = one.run(train, server.address, max_steps=half)
        assert isinstance(first, Result)
        two = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
        second = two.run(train, server.address, first.state, first.weights)
    assert isinstance(second, Result)
    return first, second


def main() -> None:
    """Run it on this machine and print what came out."""
    # Spark's workers must be this Python, and its JVM must not listen on the outer address.
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        first, second = run(spark, f"{folder}/line")
    spark.stop()
    for result, processes in ((first, 1), (second, 2)):
        print(
            f"{len(result.losses)} steps on {processes} processes: loss "
            f"{result.losses[0]:.4f} to {result.losses[-1]:.4f}"
        )
    (slopes,), (offset,) = second.weights["weight"], second.weights["bias"]
    print(f"y = {slopes} x + {offset:.3f}")


if __name__ == "__main__":
    main()
