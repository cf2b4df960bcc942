"""Locust: many users, each reading batches as one rank of one run.

    pip install locust headrace
    HEADRACE_DATASET=flights locust -f tests/load/locustfile.py --headless \
        --host localhost:50051 --users 50 --spawn-rate 10 --run-time 30s

Locust shows requests a second, response times by percentile and failures, live in the browser
without `--headless`. A "request" here is one batch: its time is that from asking for the batch to
having it whole. What it does not show: whether the samples were the right ones; `headrace
loadtest` does.

Environment: HEADRACE_DATASET (the dataset's name), HEADRACE_BATCH (samples a batch, 256).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import grpc
import grpc.experimental.gevent
from locust import User, constant, task

from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc

# Before any channel is made: gRPC's threads would block all of gevent's users at once.
grpc.experimental.gevent.init_gevent()

DATASET = os.environ.get("HEADRACE_DATASET", "flights")
BATCH = int(os.environ.get("HEADRACE_BATCH", "256"))
_SEEDS = itertools.count()
_TIMEOUT_S = 60


class Trainer(User):
    """One stream after another; each user has a seed of its own, so the cache is not flattered."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Connect."""
        self.channel = grpc.insecure_channel(self.host)
        self.stub = rpc.ShardServiceStub(self.channel)
        self.seed = next(_SEEDS)

    def on_stop(self) -> None:
        """Disconnect."""
        self.channel.close()

    @task
    def get_dataset(self) -> None:
        """Ask for the dataset: a unary call that touches no store."""
        request = pb.GetDatasetRequest(name=DATASET)
        self._measured("GetDataset", lambda: self.stub.GetDataset(request, timeout=_TIMEOUT_S))

    @task(20)
    def read_batches(self) -> None:
        """Read twenty batches from the beginning of an epoch."""
        request = pb.ReadBatchesRequest(
            dataset=DATASET,
            order=pb.OrderSpec(seed=self.seed, shuffle=True),
            global_batch_size=BATCH,
            world_size=1,
            epoch_start=pb.EpochStart(epoch=0),
            epoch_count=1,
        )
        stream = self.stub.ReadBatches(request, timeout=_TIMEOUT_S)
        for _ in range(20):
            if not self._measured("ReadBatches", lambda: _next_batch(stream)):
                break
        stream.cancel()

    def _measured(self, name: str, call: Callable[[], object]) -> bool:
        start = time.perf_counter()
        failure: Exception | None = None
        size = 0
        try:
            found = call()
            size = found if isinstance(found, int) else 0
        except grpc.RpcError as error:
            failure = error
        self.environment.events.request.fire(
            request_type="grpc",
            name=name,
            response_time=(time.perf_counter() - start) * 1e3,
            response_length=size,
            context={},
            exception=failure,
        )
        return failure is None and (name != "ReadBatches" or size > 0)


def _next_batch(stream: grpc.Call) -> int:
    """Read one whole batch and return its bytes; 0 at the end of the epoch."""
    wanted, received = -1, 0
    for message in stream:
        kind = message.WhichOneof("event")
        if kind == "batch":
            wanted = message.batch.payload_bytes
        if kind in ("batch", "chunk"):
            received += len(message.payload)
        if kind == "epoch_end":
            return 0
        if received == wanted:
            return received
    return 0
