"""Tests of rings between users, namespaces and containers of a host, by real processes of them.

What a machine forbids (another user without root, namespaces) is skipped, with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.client import NumpyDataset, Ring, Transport
from headrace.server import Server
from headrace.server.transports.ring import RingSettings
from support.command import HEADRACE
from support.datasets import write_dataset
from support.running import server_of
from support.transports import listen_for
from support.waiting import until

NAME = "d"
SAMPLES, BATCH = 2048, 16
STRANGER = 54321
_RING = "headrace-ring"

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

# As another user, when all that only root may read is read.
_CLIENT = """
import json, os, sys
from headrace.client import NumpyDataset, Ring, Transport
from headrace.errors import HeadraceError
address, uid, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
if uid:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
transport = Transport(options=[Ring(options.pop("ring_bytes", None))], **options)
dataset = NumpyDataset(address, "d", batch_size=16, epochs=1, shuffle=False, transport=transport)
try:
    batches = iter(dataset)
    total = sum(int(arrays["x"].sum()) for arrays in batches)
    found = {"transport": dataset.transport, "reason": dataset.transport_reason, "total": total}
except HeadraceError as error:
    found = {"error": type(error).__name__, "reason": error.message}
print(json.dumps({**found, "pid": os.getpid(), "uid": os.getuid()}))
"""

# What a stranger can try who knows the server's process and its socket.
_STRANGER = """
import json, os, socket, sys
server, path = int(sys.argv[1]), sys.argv[2]
os.setgroups([])
os.setgid(54321)
os.setuid(54321)
tried = {}
def attempt(name, act):
    try:
        act()
        tried[name] = "done"
    except OSError as error:
        tried[name] = type(error).__name__
def each(folder, act):
    for name in os.listdir(folder):
        act(os.path.join(folder, name))
attempt("descriptors", lambda: each(f"/proc/{server}/fd", open))
attempt("mappings", lambda: each(f"/proc/{server}/map_files", open))
attempt("memory", lambda: open(f"/proc/{server}/mem", "rb"))
attempt("socket", lambda: socket.socket(socket.AF_UNIX).connect(path))
print(json.dumps({"tried": tried, "shm": os.listdir("/dev/shm")}))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """2,048 samples of 512 bytes, whose sum is known."""
    url = str(tmp_path_factory.mktemp("hosts") / NAME)
    x = np.repeat(np.arange(SAMPLES, dtype=np.int64), 64)
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x), 64)})
    write_dataset(url, table, shard_samples=[SAMPLES], block_bytes=1 << 16)
    return url


TOTAL = 64 * SAMPLES * (SAMPLES - 1) // 2


@pytest.fixture
def socket_address() -> Iterator[str]:
    """An address that every user of the host can come to."""
    with listen_for("ring") as address:
        Path(address.removeprefix("unix:")).parent.chmod(0o755)
        yield address


def _server(url: str, listen: str, **settings: object) -> Server:
    ring = {name: settings.pop(name) for name in list(settings) if name.startswith("ring_")}
    plugs = (RingSettings(**ring),)  # type: ignore[arg-type] # tests name the settings they mean
    return server_of({NAME: url}, listen=listen, plugs=plugs, **settings)


def _client(
    address: str, *, uid: int = 0, within: Sequence[str] = (), **options: object
) -> dict[str, object]:
    command = [*within, sys.executable, "-c", _CLIENT, address, str(uid), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@needs_root
@pytest.mark.parametrize("is_invited", [False, True])
def test_another_user_has_a_ring_only_if_invited(
    url: str, socket_address: str, *, is_invited: bool
) -> None:
    """The kernel says who comes; the others get the same batches over gRPC, and the reason."""
    uids = str(STRANGER) if is_invited else ""
    with _server(url, socket_address, unix_mode=0o666, ring_uids=uids):
        found = _client(socket_address, uid=STRANGER)

    assert (STRANGER, TOTAL) == (found["uid"], found["total"])
    if is_invited:
        assert ("ring", "") == (found["transport"], found["reason"])
    else:
        assert "grpc" == found["transport"]
        assert f"user {STRANGER} may not have a ring" in str(found["reason"])
        assert "--ring-uids" in str(found["reason"])


@needs_root
def test_another_user_can_neither_read_nor_write_a_ring(url: str, socket_address: str) -> None:
    """Not by the server's descriptors, its mappings or its memory, nor by the ring's socket."""
    path = socket_address.removeprefix("unix:")
    with _server(url, socket_address), _opened(socket_address):
        assert _ring_descriptors()
        done = subprocess.run(
            [sys.executable, "-c", _STRANGER, str(os.getpid()), f"{path}.ring"],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
    found = json.loads(done.stdout)

    assert (
        dict.fromkeys(("descriptors", "mappings", "memory", "socket"), "PermissionError")
        == (found["tried"])
    )
    assert not [name for name in found["shm"] if "ring" in name]


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Keep a ring open."""
    dataset = NumpyDataset(address, NAME, batch_size=BATCH, transport=Transport("ring"))
    # Not `iter`, whose end would not end what it is made of at once.
    with closing(dataset.views()) as batches:
        next(batches)
        yield


def _ring_descriptors() -> int:
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        # What other threads close meanwhile is none.
        with suppress(FileNotFoundError):
            count += _RING in str(descriptor.readlink())
    return count


_NAMESPACES = ("unshare", "--pid", "--user", "--map-root-user", "--fork", "--mount-proc")


def _skip_unless_allowed(*within: str) -> None:
    if shutil.which(within[0]) is None:
        pytest.skip(f"{within[0]} is not installed")
    tried = subprocess.run([*within, "true"], capture_output=True, timeout=240, check=False)
    if tried.returncode:
        pytest.skip(f"this machine does not allow {' '.join(within)}: {tried.stderr.decode()}")


def test_a_ring_crosses_namespaces_of_processes_and_users(url: str, socket_address: str) -> None:
    """As between a pod's containers: the client is process 1 of its own, and nobody asks who."""
    _skip_unless_allowed(*_NAMESPACES)
    with _server(url, socket_address):
        found = _client(socket_address, within=_NAMESPACES, kind="ring")

        assert until(lambda: not _ring_descriptors())
    assert ("ring", TOTAL, 1) == (found["transport"], found["total"], found["pid"])


def test_a_containers_limit_makes_a_smaller_ring(
    url: str, socket_address: str, tmp_path: Path
) -> None:
    """Server and client say what to raise, and the batches are the same."""
    within = ("unshare", "--mount", "--map-root-user", "--user")
    _skip_unless_allowed(*within)
    (tmp_path / "memory").mkdir()
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        (tmp_path / name).write_text(str(96 << 20))
    serve = [str(HEADRACE), "serve", "--listen", socket_address]
    serve += ["--cache-bytes", str(16 << 20), "--json", f"{NAME}={url}"]
    # A container's view of its limit, with none of the machine's own touched.
    script = f'mount --bind {tmp_path} /sys/fs/cgroup && exec "$@"'
    with subprocess.Popen(
        [*within, "sh", "-c", script, "sh", *serve],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline(), server.communicate()[1].decode()
            found = _client(socket_address, kind="ring", ring_bytes=64 << 20)
        finally:
            server.terminate()
            said = server.communicate(timeout=240)[1].decode()

    wanted = "memory limit of 96 MiB leaves 20 MiB for a ring"
    assert ("ring", TOTAL) == (found["transport"], found["total"])
    assert wanted in str(found["reason"])
    assert "raise the limit, or lower --cache-bytes" in str(found["reason"])
    assert wanted in said


def test_two_jobs_of_eight_ranks_share_a_server(url: str, socket_address: str) -> None:
    """Sixteen rings at once: each job reads each sample once, and every rank out of its ring."""
    ranks = 8
    with ExitStack() as stack:
        stack.enter_context(_server(url, socket_address, cache_bytes=1 << 24))
        threads = stack.enter_context(ThreadPoolExecutor(2 * ranks))
        read = partial(_read_rank, socket_address, ranks)
        places = [(seed, rank) for seed in (1, 2) for rank in range(ranks)]
        found = dict(zip(places, threads.map(read, places), strict=True))

    for seed in (1, 2):
        job = [found[seed, rank] for rank in range(ranks)]
        assert list(range(SAMPLES)) == sorted(sample for samples, _ in job for sample in samples)
        assert ["ring"] * ranks == [transport for _, transport in job]
    assert [samples for samples, _ in (found[1, 0],)] != [samples for samples, _ in (found[2, 0],)]


def _read_rank(address: str, ranks: int, place: tuple[int, int]) -> tuple[list[int], str]:
    seed, rank = place
    dataset = NumpyDataset(
        address,
        NAME,
        batch_size=BATCH,
        seed=seed,
        rank=rank,
        world_size=ranks,
        epochs=1,
        transport=Transport(options=[Ring(1 << 20)], prefetch_bytes=0),
    )
    samples = [int(row[0]) for arrays in dataset for row in arrays["x"]]
    return samples, dataset.transport
