"""How long a private server lives."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.server.process.leases import Leases
from support.no_descriptors import no_descriptors

NEVER_S = 600.0
_LOOKS_S = 1.5


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    """The leases of a server in a folder of its own."""
    (tmp_path / "f").mkdir()
    return Leases(
        tmp_path / "f" / "k.lease", tmp_path / "f" / "k.lock", address="unix:/a", newest=dict
    )


@contextmanager
def _waiting(
    leases: Leases, *, linger_s: float, in_use: threading.Event
) -> Iterator[threading.Thread]:
    """Wait in a thread; at the end, ask it to end and clean up."""
    asked = threading.Event()

    def wait() -> None:
        leases.wait(linger_s=linger_s, is_in_use=in_use.is_set, is_asked=asked.is_set)
        leases.close()

    thread = threading.Thread(target=wait, name="leases")
    thread.start()
    try:
        yield thread
    finally:
        asked.set()
        thread.join(60)
    assert not thread.is_alive()


def _lease(folder: Path, *pids: int) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(folder / "f" / "k.lease"))
    client.sendall(json.dumps({"watch": pids}).encode() + b"\n")
    assert client.recv(100) == b"unix:/a\n"
    return client


def _dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(60)
    return process.pid


def test_the_end_of_its_last_process_is_its_end(leases: Leases, tmp_path: Path) -> None:
    """No linger is waited for, and neither socket nor lock nor folder stays."""
    with _waiting(leases, linger_s=NEVER_S, in_use=threading.Event()) as thread:
        _lease(tmp_path, _dead_pid()).close()
        thread.join(60)

        assert not thread.is_alive()
    assert [] == list(tmp_path.iterdir())


def test_a_process_of_the_job_that_lives_keeps_it(leases: Leases, tmp_path: Path) -> None:
    """A worker that ends names its parent, for whose next workers the server waits."""
    with _waiting(leases, linger_s=NEVER_S, in_use=threading.Event()) as thread:
        _lease(tmp_path, _dead_pid(), os.getpid()).close()
        thread.join(1)

        assert thread.is_alive()


def test_it_ends_when_nobody_reads_although_leases_are_held(leases: Leases, tmp_path: Path) -> None:
    """A notebook that lies open holds its lease, but no memory."""
    in_use = threading.Event()
    in_use.set()
    with (
        _waiting(leases, linger_s=0.5, in_use=in_use) as thread,
        _lease(tmp_path, os.getpid()) as client,
    ):
        thread.join(1.5)
        was_alive = thread.is_alive()
        in_use.clear()
        thread.join(60)

        assert was_alive
        assert not thread.is_alive()
        assert client.recv(1) == b""


def test_garbage_costs_the_sender_its_connection(leases: Leases, tmp_path: Path) -> None:
    """What is no lease is closed, and others are answered all the same."""
    with (
        _waiting(leases, linger_s=NEVER_S, in_use=threading.Event()),
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.settimeout(60)
        client.connect(str(tmp_path / "f" / "k.lease"))
        client.sendall(b'{"watch": "all"}\n')

        assert client.recv(1) == b""
        _lease(tmp_path, os.getpid()).close()


def test_a_client_without_a_descriptor_is_answered_later(leases: Leases, tmp_path: Path) -> None:
    """Until there is one, the server rests: waiting takes next to no processor time."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    with client, _waiting(leases, linger_s=NEVER_S, in_use=threading.Event()) as thread:
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        with no_descriptors():
            client.connect(str(tmp_path / "f" / "k.lease"))
            client.sendall(b'{"watch": []}\n')
            before_s = time.clock_gettime(clock)
            threading.Event().wait(_LOOKS_S)
            used_s = time.clock_gettime(clock) - before_s
        told = client.recv(100)

    assert b"unix:/a\n" == told
    assert used_s < _LOOKS_S / 20
