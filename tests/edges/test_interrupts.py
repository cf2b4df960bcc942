"""Ctrl-C ends a loop and nothing else; numbers at their limits are refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import BadArgumentError, TokenMalformedError
from headrace.order import NUMBER_LIMIT, OrderSpec, Token, TokenEncoder, decode_token, encode_token
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.running import server_of
from support.served import failure_of, messages_of

JOB = Path(__file__).parents[1] / "support" / "interrupted_job.py"
SAMPLES, BATCH = 400, 4
Place = tuple[int, int]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset."""
    found = str(tmp_path_factory.mktemp("interrupts") / "d")
    write_dataset(found, pa.table({"x": np.arange(SAMPLES)}), shard_samples=[SAMPLES])
    return found


@pytest.fixture
def address(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server of it, at a port or at a socket where rings are to be had."""
    listen = f"unix:{tmp_path}/s" if getattr(request, "param", "") == "ring" else "127.0.0.1:0"
    with server_of({"d": url}, listen=listen) as server:
        yield server.address


def _number(place: Place) -> int:
    """Batches of the run before a place."""
    epoch, position = place
    return epoch * (SAMPLES // BATCH) + position // BATCH


def _interrupted(address: str, rounds: int, seed: int, kind: str) -> None:
    job = [sys.executable, str(JOB), address, str(rounds), str(seed), kind]
    ended = subprocess.run(job, check=False, capture_output=True, text=True, timeout=300)
    assert 0 == ended.returncode, ended.stderr[-2000:]
    found = json.loads(ended.stdout)

    assert {"KeyboardInterrupt"} == {error for error, *_ in found["rounds"]}
    assert ["MainThread"] == found["threads"]
    # Python only tells of a signal that comes while an object ends, and goes on.
    assert [] == [place for place in found["dropped"] if "/headrace/client/" in place]
    for _, seen, state, following in found["rounds"]:
        numbers = [_number(place) for place in seen]
        assert list(range(numbers[0], numbers[0] + len(seen))) == numbers if seen else True
        # One batch may have reached the loop, and not its list, when the signal came.
        assert not seen or _number(state) - numbers[-1] in (1, 2)
        assert _number(state) == _number(following)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        pytest.param("grpc", "torch", marks=pytest.mark.long),
        ("ring", "torch"),
        ("grpc", "numpy"),
        pytest.param("ring", "numpy", marks=pytest.mark.long),
    ],
    indirect=["address"],
)
def test_two_interrupts_are_a_keyboard_interrupt(address: str, kind: str) -> None:
    """However close they come: no batch is lost or comes twice, and no thread stays."""
    _interrupted(address, 8, 1, kind)


@pytest.mark.long
@pytest.mark.parametrize("address", ["grpc", "ring"], indirect=True)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("seed", range(2, 8))
def test_many_interrupts(address: str, seed: int, kind: str) -> None:
    """The same, 100 times a stream."""
    _interrupted(address, 100, seed, kind)


def _token(url: str, **numbers: int) -> bytes:
    """A token with the right checksum, and any numbers."""
    with open_dataset(url) as dataset:
        fingerprint = dataset.fingerprint
    token = Token(fingerprint, OrderSpec(unit=BATCH), 0, 0, BATCH, 0, 0)
    place = {"epoch": 0, "position": 0, "step": 0, "sample_count": 0} | numbers
    return TokenEncoder(token).encode(**place)


GREATEST = [(1 << 63) - 1, 1 << 62, 1 << 61, 1 << 42, SAMPLES]


@pytest.mark.parametrize("field", ["epoch", "position", "step", "sample_count"])
@pytest.mark.parametrize("number", GREATEST)
def test_a_token_at_its_limits_is_read_or_refused(
    address: str, url: str, field: str, number: int
) -> None:
    """A signed one too: whatever it holds, the server has no error of its own."""
    request = pb.ReadBatchesRequest(
        dataset="d",
        resume_token=_token(url, **{field: number}),
        global_batch_size=BATCH,
        world_size=1,
        epoch_count=2,
    )
    with grpc.insecure_channel(address) as channel:
        messages = messages_of(channel, request)
        try:
            seen = list(messages)
        except grpc.RpcError as error:
            code, info = failure_of(error)

            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE)
            assert info.reason in ("TOKEN_MALFORMED", "BAD_COORDINATES", "POSITION_PAST_END")
            return

    last = decode_token(seen[-1].epoch_end.resume_token)
    assert number < NUMBER_LIMIT
    assert number <= max(last.epoch, last.position, last.step, last.sample_count)


@pytest.mark.parametrize("number", [(1 << 63) - 1, 1 << 62])
def test_a_request_at_its_limits_is_refused(address: str, number: int) -> None:
    """Of an epoch that nobody can reach, or of more samples than there can be."""
    for fields in (
        {"epoch_start": pb.EpochStart(epoch=number)},
        {"epoch_start": pb.EpochStart(position=number)},
        {"epoch_start": pb.EpochStart(), "epoch_count": number},
        {"epoch_start": pb.EpochStart(), "global_batch_size": number},
    ):
        stated = {"dataset": "d", "global_batch_size": BATCH, "world_size": 1, **fields}
        request = pb.ReadBatchesRequest(**stated)  # type: ignore[arg-type] # of several types
        with grpc.insecure_channel(address) as channel:
            messages = messages_of(channel, request)
            with pytest.raises(grpc.RpcError) as caught:
                list(messages)

        assert failure_of(caught.value)[0] in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.OUT_OF_RANGE,
        )


def _with(token: Token, field: str, number: int) -> Token:
    changed: Any = {field: number}
    return replace(token, **changed)


def test_no_token_is_made_that_cannot_be_read() -> None:
    """Numbers of a place are below 2^63, in and out; a stream begins below 2^62."""
    token = Token("0" * 32, OrderSpec(unit=BATCH), 0, 0, BATCH, 0, 0)
    for field in ("epoch", "position", "step", "sample_count", "global_batch_size"):
        most = _with(token, field, (1 << 63) - 1)

        assert most == decode_token(encode_token(most))
        with pytest.raises(BadArgumentError, match=field):
            _with(token, field, 1 << 63)
    too_late = TokenEncoder(token).encode(epoch=0, position=0, step=1 << 63, sample_count=0)
    with pytest.raises(TokenMalformedError, match="with too many bytes"):
        decode_token(too_late)
