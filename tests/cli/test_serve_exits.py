"""The exit codes of `headrace serve`, each through the command: the table of operations.md."""

from __future__ import annotations

import ctypes
import platform
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from headrace.v1 import shard_service_pb2 as pb
from support.command import HEADRACE, run, serving
from support.forkserver import Forked
from support.served import failure_of, messages_of
from support.shards import numbered_batch, write_shards_of
from support.waiting import until

_END_S = 60
_ROWS, _ROW_BYTES = 8, 4 << 20
# Python has no call to send a signal to one thread of another process.
_TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine(), 0)
_ANY = ("--listen", "127.0.0.1:0")
_PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A small dataset."""
    folder = str(tmp_path / "small")
    write_shards_of(folder, [numbered_batch(0, 50)])
    return folder


@pytest.mark.skipif(not _TGKILL, reason="the number of tgkill is not known here")
def test_a_signal_that_another_thread_gets_ends_the_server(url: str) -> None:
    """The kernel may choose any thread of a process, and the main one sleeps then."""
    with serving({"small": url}) as server:
        pid = server.process.pid
        # The first of them stays, while the last may be one that is about to end.
        other = min(thread for thread in _threads_that_take(signal.SIGTERM, pid) if thread != pid)
        assert 0 == ctypes.CDLL(None).syscall(_TGKILL, pid, other, int(signal.SIGTERM))

        assert 0 == server.process.wait(_END_S)


def _threads_that_take(asked: signal.Signals, pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end while they are listed.
        with suppress(FileNotFoundError, ProcessLookupError):
            status = (task / "status").read_text()
            blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
            if not blocked & 1 << (asked - 1):
                yield int(task.name)


def test_the_page_lists_the_codes() -> None:
    """The codes of the page are those that the tests below see."""
    table = _PAGE.read_text(encoding="utf-8").partition("| exit code |")[2].partition("\n\n")[0]

    assert ["0", "1", "2", "130", "negative, 128 + n"] == re.findall(
        r"^\| ([^|]*) \|", table, re.MULTILINE
    )


def test_settings_that_hold_are_0(url: str) -> None:
    """`--check-config` found all good."""
    assert 0 == run("serve", f"small={url}", "--check-config").returncode


def test_a_folder_that_cannot_be_used_is_1(url: str, tmp_path: Path) -> None:
    """`--check-config` says what a start would, and creates nothing."""
    (tmp_path / "file").touch()
    good = run("serve", f"small={url}", f"--cache-dir={tmp_path}/a/b", "--check-config")
    bad = run("serve", f"small={url}", f"--cache-dir={tmp_path}/file/b", "--check-config")

    assert 0 == good.returncode
    assert not (tmp_path / "a").exists()
    assert 1 == bad.returncode
    assert "cannot use cache_dir" in bad.stdout + bad.stderr


@pytest.mark.parametrize(
    "asked", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_a_server_that_drained_is_0(url: str, asked: signal.Signals) -> None:
    """SIGTERM and SIGINT end a server well."""
    with serving({"small": url}) as server:
        server.process.send_signal(asked)

        assert 0 == server.process.wait(_END_S)


def test_a_dataset_that_is_not_there_is_1(tmp_path: Path) -> None:
    """What the world is to blame for: one line says what."""
    done = run("serve", f"small={tmp_path}/none", *_ANY)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))


def test_an_address_in_use_is_1(url: str) -> None:
    """The line names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("serve", f"small={url}", "--listen", address)

    assert (1, True) == (done.returncode, address in done.stderr)


def test_wrong_settings_are_2(url: str) -> None:
    """The line names the setting; starting again would not help."""
    done = run("serve", f"small={url}", "--heartbeat-s", "0")

    assert (2, True) == (done.returncode, "heartbeat_s" in done.stderr)


@pytest.mark.parametrize(
    ("asked", "workers"),
    [
        (signal.SIGINT, "0"),
        (signal.SIGTERM, "0"),
        pytest.param(signal.SIGTERM, "2", marks=pytest.mark.long),
    ],
)
def test_a_signal_before_it_serves_is_130(asked: signal.Signals, workers: str) -> None:
    """A store that says nothing keeps it from opening its dataset, and not from ending."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(_END_S)
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        process = subprocess.Popen(
            [HEADRACE, "serve", "small=s3://flowers/small", "--workers", workers, *_ANY],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            with store.accept()[0]:
                process.send_signal(asked)

                assert 130 == process.wait(_END_S)
        finally:
            process.kill()
            process.wait(_END_S)


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[Forked | subprocess.Popen[str]]:
    """A server that drains, with a stream that nobody reads and that so does not end."""
    url = str(tmp_path / "small")
    # More than a connection holds: only then the end of the stream cannot be sent either.
    blobs = pa.RecordBatch.from_pydict({"blob": [bytes(_ROW_BYTES)] * _ROWS})
    write_shards_of(url, [blobs])
    request = pb.ReadBatchesRequest(
        dataset="small", global_batch_size=_ROWS, world_size=1, epoch_start=pb.EpochStart()
    )
    with ExitStack() as stack:
        server = stack.enter_context(serving({"small": url}, "--drain-s", "600"))
        channel = stack.enter_context(grpc.insecure_channel(server.address))
        # Kept: gRPC cancels a call that nobody refers to.
        messages = messages_of(channel, request)
        next(messages)
        server.process.send_signal(signal.SIGTERM)
        assert until(lambda: _refuses(server.address, request))
        yield server.process
        server.process.kill()
        del messages


def _refuses(address: str, request: pb.ReadBatchesRequest) -> bool:
    # As our clients, with a connection of its own: of one that is shared and ends just then, gRPC
    # may never tell the end of a new call, not even at its deadline.
    with grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        try:
            next(messages_of(channel, request))
        except grpc.RpcError as error:
            return failure_of(error)[0] is grpc.StatusCode.UNAVAILABLE
    return False


def test_a_second_signal_ends_it_at_once(unread: Forked | subprocess.Popen[str]) -> None:
    """Though a stream is open and has minutes to end: killed by SIGTERM."""
    assert unread.poll() is None

    unread.send_signal(signal.SIGTERM)

    assert -signal.SIGTERM == unread.wait(_END_S)
