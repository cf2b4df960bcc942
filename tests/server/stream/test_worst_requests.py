"""The worst requests that can be written, against the formula of memory in docs/limits.md."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import any_pb2
from PIL import Image

from headrace.v1 import columns_pb2 as columns_pb
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from support.command import Serving, serving
from support.datasets import write_dataset
from support.served import stub_of
from support.threads import at_once

_MIB = 1 << 20
_SAMPLES, _ITEM_BYTES, _COLUMNS = 4000, 512, 24
_CACHE_BYTES, _FETCH_THREADS, _READ_BYTES = 64 * _MIB, 4, 9 * _MIB
# What a working server takes beside its budgets, as docs/limits.md says: what the C library
# keeps of freed memory.
_KEPT_BYTES = 64 * _MIB
_CGROUP = Path("/sys/fs/cgroup/memory")
_STREAM_TIMEOUT_S = 25.0
# What a request may be told; its batch may also just be sent.
_REFUSED = {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"}


@dataclass(slots=True)
class _Outcome:
    """What came of the streams, and the memory that they took."""

    codes: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    grown_bytes: int = 0
    is_alive: bool = False


def _png(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _table() -> pa.Table:
    numbers = np.arange(_SAMPLES)
    vectors = pa.array(np.zeros(_SAMPLES * _ITEM_BYTES, np.uint8))
    ragged = pa.array([[1] * (n % 50) for n in range(_SAMPLES)], pa.list_(_REQUIRED_BYTE))
    photos = [_png(3000)] * 3 + [_png(64)] * (_SAMPLES - 3)
    return pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "ragged": ragged,
            "even": pa.array([[1] * 8 for _ in range(_SAMPLES)], pa.list_(_REQUIRED_BYTE)),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, _ITEM_BYTES),
            "photo": pa.array(photos, pa.binary()),
            **{f"column_{n}": pa.array(numbers, pa.int64()) for n in range(_COLUMNS)},
        }
    )


_REQUIRED_BYTE = pa.field("item", pa.int8(), nullable=False)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small dataset, of which batches can be made large."""
    found = str(tmp_path_factory.mktemp("worst") / "worst")
    write_dataset(found, _table(), shard_samples=[_SAMPLES], block_bytes=1 << 18)
    return found


def _request(batch_size: int, columns: list[str], *steps: any_pb2.Any) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="worst",
        global_batch_size=batch_size,
        world_size=1,
        columns=columns,
        stages=steps,
        epoch_start=pb.EpochStart(),
    )


def _pad(length: int) -> any_pb2.Any:
    return packed(columns_pb.Pad(column="ragged", length=length, truncate=True))


def _cast(column: str, to: pb.ElementType) -> any_pb2.Any:
    return packed(columns_pb.Cast(column=column, element_type=to))


def _padded_end() -> pb.ReadBatchesRequest:
    request = _request(1 << 16, ["number"])
    request.end = pb.END_MODE_PAD
    return request


def _mixed() -> pb.ReadBatchesRequest:
    request = _request(_SAMPLES, ["vector"], _cast("vector", pb.ELEMENT_TYPE_FLOAT64))
    request.ClearField("dataset")
    mixture = mixtures_pb.Mixture(
        datasets=[
            mixtures_pb.MixtureDataset(name=name, proportion=1) for name in ("worst", "again")
        ],
        batching=mixtures_pb.BATCHING_STRATIFIED,
    )
    request.stages.append(packed(mixture))
    return request


def _requests() -> dict[str, pb.ReadBatchesRequest]:
    wide, narrow = pb.ELEMENT_TYPE_FLOAT64, pb.ELEMENT_TYPE_FLOAT32
    casts = [_cast("vector", to) for to in (wide, narrow, wide, pb.ELEMENT_TYPE_INT64)]
    columns = [f"column_{n}" for n in range(_COLUMNS)]
    stack = columns_pb.Stack(column="even", item_shape=[8])
    image = images_pb.DecodeImage(column="photo", height=224, width=224)
    return {
        "pad": _request(32, ["ragged"], _pad(_MIB)),
        "pad of one row": _request(1, ["ragged"], _pad(12 * _MIB)),
        "pad beyond all": _request(_SAMPLES, ["ragged"], _pad(256 * _MIB)),
        "pad and cast": _request(3, ["ragged"], _pad(_MIB), _cast("ragged", wide)),
        "casts": _request(2000, ["vector"], *casts),
        "stack": _request(_SAMPLES, ["even"], packed(stack), _cast("even", wide)),
        "images": _request(200, ["photo"], packed(image)),
        "plain": _request(_SAMPLES, ["vector"]),
        "many columns": _request(_SAMPLES, columns, *[_cast(name, narrow) for name in columns]),
        "padded end": _padded_end(),
        "mixture": _mixed(),
    }


def _memory_bytes(pid: int, which: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{which}:")]
    return int(line.split()[1]) * 1024


def _stream(address: str, request: pb.ReadBatchesRequest, outcome: _Outcome) -> None:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options=options) as channel:
        call: Any = stub_of(channel).ReadBatches(request, timeout=_STREAM_TIMEOUT_S)
        try:
            left = 2
            while left:
                left -= next(call).HasField("batch")
                outcome.batches += 1
            outcome.codes["OK"] += 1
        except grpc.RpcError as error:
            outcome.codes[error.code().name] += 1
        finally:
            call.cancel()


def _ran(server: Serving, requests: list[pb.ReadBatchesRequest]) -> _Outcome:
    """Read all at once; return what came of it."""
    outcome, pid = _Outcome(), server.process.pid
    _stream(server.address, _request(1, ["number"]), _Outcome())  # loads what is loaded late
    idle_bytes = _memory_bytes(pid, "VmRSS")
    with _limited(pid, _allowed_bytes(len(requests)) * 11 // 10):
        at_once(
            lambda request: _stream(server.address, request, outcome),
            requests,
            timeout_s=2 * _STREAM_TIMEOUT_S,
        )
        outcome.is_alive = server.process.poll() is None
        outcome.grown_bytes = _memory_bytes(pid, "VmHWM") - idle_bytes
    return outcome


def _allowed_bytes(streams: int) -> int:
    """Return what docs/limits.md allows beyond idle."""
    fetched = _FETCH_THREADS * _READ_BYTES
    return _CACHE_BYTES + fetched + _PAYLOAD_BYTES + streams * 4 * _MIB + _KEPT_BYTES


_PAYLOAD_BYTES = 96 * _MIB


@contextmanager
def _limited(pid: int, limit_bytes: int) -> Iterator[None]:
    """Let the kernel end a process that takes more from now on, where we may ask for that."""
    group = _CGROUP / f"headrace-test-{os.getpid()}-{pid}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            (_CGROUP / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()


@pytest.fixture
def start(url: str) -> Iterator[Callable[[], Serving]]:
    """Start a server with a small budget."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(
            serving(
                {"worst": url, "again": url},
                f"--payload-bytes={_PAYLOAD_BYTES}",
                f"--cache-bytes={_CACHE_BYTES}",
                f"--fetch-threads={_FETCH_THREADS}",
                "--max-streams=64",
                "--log-level=error",
            )
        )


def _check(outcome: _Outcome, streams: int) -> None:
    assert outcome.is_alive
    assert not set(outcome.codes) - _REFUSED - {"OK"}, outcome.codes
    assert outcome.codes["OK"], outcome.codes
    assert _allowed_bytes(streams) >= outcome.grown_bytes


def test_the_worst_requests_at_once_stay_within_the_formula(start: Callable[[], Serving]) -> None:
    """Pads, casts, images, mixtures and wide batches at once take what the formula allows."""
    requests = list(_requests().values())

    outcome = _ran(start(), requests)

    _check(outcome, len(requests))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in _requests() if name != "pad beyond all"])
def test_many_of_a_worst_request_stay_within_the_formula(
    name: str, start: Callable[[], Serving]
) -> None:
    """Eight streams of the same request, each with an order of its own, do so too."""
    requests = [_requests()[name] for _ in range(8)]
    for seed, request in enumerate(requests):
        request.order.seed = seed

    outcome = _ran(start(), requests)

    _check(outcome, len(requests))
