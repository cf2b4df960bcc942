"""Where headrace does not run it says so, and what Linux alone has is not taken for granted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import HEADRACE
from support.datasets import small_table, write_dataset

_WITHOUT_LINUX = Path(__file__).parent / "without_linux"
_PACKAGES = ("bench", "client", "converter", "errors", "loadtest", "order", "server", "storage")
# What Python lacks on Windows, so that a module which asks for it before the sentence is found.
_WINDOWS = """
import shutil, sys  # before, since Python 3.13's own imports what Windows has
sys.platform = "win32"
sys.modules.update(dict.fromkeys(("fcntl", "resource", "grpc", "pyarrow")))
"""


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("package", _PACKAGES)
def test_windows_is_refused_in_a_sentence(package: str) -> None:
    """By each part, before it asks for what Windows lacks, and with where to go instead."""
    done = _run("-c", f"{_WINDOWS}import headrace.{package}")

    said = done.stderr.splitlines()[-1]
    assert 1 == done.returncode
    assert said.startswith("ImportError: headrace runs on Linux, not on Windows")
    assert "WSL 2" in said


def test_the_command_refuses_windows_in_a_line() -> None:
    """Without a traceback."""
    done = _run("-c", f"{_WINDOWS}from headrace.cli.main import main; main()")

    assert (1, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert done.stderr.startswith("headrace runs on Linux, not on Windows")


_READ = """
import json, sys
from headrace.client import NumpyDataset, RemoteDataset, Transport
from headrace.server import ServerConfig, start_server

url, socket = sys.argv[1:]
found = []
with start_server(ServerConfig(datasets={"d": url}, listen=f"unix:{socket}")) as server:
    dataset = RemoteDataset(server.address, "d", batch_size=10, epochs=1)
    found.append([sum(batch.sample_count for batch in dataset), dataset.stats().transport,
                  dataset.stats().transport_reason])
    wanted = RemoteDataset(server.address, "d", batch_size=10, transport=Transport(kind="ring"))
    try:
        next(iter(wanted))
    except Exception as error:
        found.append(str(error))
with NumpyDataset(None, url, batch_size=10, epochs=1) as private:
    found.append(sum(len(next(iter(batch.values()))) for batch in private))
print(json.dumps(found))
"""


def test_without_what_linux_alone_has_batches_come_over_grpc(tmp_path: Path) -> None:
    """A server in one process, a private server and clients; the ring says why there is none."""
    url, runtime = str(tmp_path / "d"), tmp_path / "run"
    runtime.mkdir(mode=0o700)
    write_dataset(url, small_table(50), shard_samples=[50])
    variables = {"PYTHONPATH": str(_WITHOUT_LINUX), "XDG_RUNTIME_DIR": str(runtime)}

    done = _run("-c", _READ, url, str(tmp_path / "s"), **variables)

    assert 0 == done.returncode, done.stderr
    over_grpc, wanted, private = json.loads(done.stdout)
    assert [50, "grpc", "this platform has no memfd"] == over_grpc
    assert "no memfd" in wanted
    assert 50 == private


def test_without_memfd_worker_processes_are_refused(tmp_path: Path) -> None:
    """In a line that says what to do, before any of them starts."""
    url = str(tmp_path / "d")
    write_dataset(url, small_table(50), shard_samples=[50])
    done = _run(
        *(str(HEADRACE), "serve", f"d={url}", "--listen", "127.0.0.1:0", "--workers", "2"),
        PYTHONPATH=str(_WITHOUT_LINUX),
    )

    assert (1, "") == (done.returncode, done.stdout), done.stderr
    assert "leave --workers out" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
