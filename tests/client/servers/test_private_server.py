"""RemoteDataset(None, url): a server that comes with the job and goes with it."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headrace.client import (
    Batch,
    BatchLoader,
    PrivateServer,
    RemoteDataset,
    Transport,
)
from headrace.client.servers.private_server import JobServer, name_of_source, private_server
from headrace.client.servers.runtime_folder import make_folder, rendezvous_of, try_lock
from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    NotADatasetError,
    UnsupportedColumnError,
)
from support.command import serving
from support.datasets import small_table, write_dataset
from support.private import is_over, server_pids, wait_until
from support.s3 import S3

SAMPLES = 400
JOB = Path(__file__).parents[2] / "support" / "private_job.py"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small dataset on disk; ``number`` is the sample's id."""
    url = str(tmp_path_factory.mktemp("private") / "small")
    write_dataset(url, small_table(SAMPLES), shard_samples=(150, 250))
    return url


def _ids(batch: Batch) -> list[int]:
    number = batch["number"]
    assert isinstance(number, torch.Tensor)
    return [int(value) for value in number.tolist()]


@contextmanager
def _job(url: str, ranks: int) -> Iterator[list[list[int]]]:
    """Run a job until each rank has read an epoch, and kill it; gives the ids of each rank."""
    command = [sys.executable, str(JOB), url, str(ranks)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert job.stdout is not None
        yield [json.loads(job.stdout.readline()) for _ in range(ranks)]
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(60)
        assert job.stdout is not None
        job.stdout.close()


def test_it_gives_the_batches_of_any_other_server(url: str, runtime: Path) -> None:
    """Private or not, the order is the same, and so are states."""
    with serving({"small": url}) as running:
        wanted = RemoteDataset(running.address, "small", batch_size=32, epochs=1)
        expected = [_ids(batch) for batch in wanted]
        state = wanted.state_dict()
        wanted.close()
    dataset = RemoteDataset(None, url, batch_size=32, epochs=1)
    found = [_ids(batch) for batch in dataset]

    assert expected == found
    assert state == dataset.state_dict()
    assert 1 == len(server_pids(runtime))
    dataset.close()


def test_a_lost_private_server_is_started_again(url: str, runtime: Path) -> None:
    """Killed in the middle of an epoch, it costs the loop time and nothing else."""
    dataset = RemoteDataset(
        None, url, batch_size=8, epochs=1, transport=Transport(prefetch_bytes=0)
    )
    batches = iter(dataset)
    seen = [_ids(batch) for batch in itertools.islice(batches, 5)]
    for pid in server_pids(runtime):
        os.kill(pid, signal.SIGKILL)
    seen += [_ids(batch) for batch in batches]
    dataset.seek(0)

    assert seen == [_ids(batch) for batch in dataset]
    assert SAMPLES == sum(map(len, seen))
    dataset.close()


def test_workers_of_a_loader_share_it_over_epochs(url: str, runtime: Path) -> None:
    """The end of an epoch's workers is not the end of the job."""
    dataset = RemoteDataset(None, url, batch_size=32, epochs=2)
    loader = BatchLoader(dataset, num_workers=2)
    first = [_ids(batch) for batch in loader]
    servers = server_pids(runtime)
    second = [_ids(batch) for batch in loader]

    assert 1 == len(servers)
    assert servers == server_pids(runtime)
    assert 2 * (SAMPLES // 32) == len(first) + len(second)


def test_eight_ranks_share_one_and_sigkill_ends_it(url: str, runtime: Path) -> None:
    """A job that is killed leaves no server, no socket and no folder behind."""
    with _job(url, 8) as ranks:
        servers = server_pids(runtime)

    assert 1 == len(servers)
    assert SAMPLES // 64 * 64 == len(set(itertools.chain.from_iterable(ranks)))
    assert wait_until(lambda: not server_pids(runtime))
    assert wait_until(lambda: not list(runtime.iterdir()))


def test_what_killed_servers_leave_is_swept(url: str, runtime: Path) -> None:
    """The next server of any job removes the sockets and locks of those that were killed."""
    with _job(url, 1):
        (server,) = server_pids(runtime)
        os.kill(server, signal.SIGKILL)
    # On a busy machine it holds its socket for a while yet.
    assert wait_until(lambda: is_over(server))
    stale = {path.name for path in (runtime / "headrace").iterdir()}
    assert 4 == len(stale)

    dataset = RemoteDataset(
        None,
        url,
        batch_size=16,
        epochs=1,
        transport=Transport(private=PrivateServer(cache_bytes=1 << 20)),
    )
    next(iter(dataset))

    assert not stale & {path.name for path in (runtime / "headrace").iterdir()}
    dataset.close()


def test_what_store_says_reaches_the_server_and_nobody_else(
    s3: S3, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials given as ``store`` open it; no process shows them but in its memory."""
    write_dataset(s3.url("small"), small_table(SAMPLES), shard_samples=(SAMPLES,))
    for variable in s3.weed.environment():
        monkeypatch.delenv(variable)
    store = {
        "endpoint": s3.weed.endpoint,
        "access_key": s3.weed.access_key,
        "secret_key": s3.weed.secret_key,
    }
    dataset = RemoteDataset(
        None,
        s3.url("small"),
        batch_size=SAMPLES,
        epochs=1,
        transport=Transport(private=PrivateServer(store=store)),
    )
    (batch,) = dataset
    (server,) = server_pids(runtime)
    shown = [Path(f"/proc/{server}/{part}").read_bytes() for part in ("cmdline", "environ")]

    assert list(range(SAMPLES)) == sorted(_ids(batch))
    assert not [part for part in shown if s3.weed.secret_key.encode() in part]
    assert s3.weed.secret_key not in repr(dataset._endpoints)
    dataset.close()


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"endpiont": "http://x"}, "store has no setting 'endpiont'; did you mean endpoint"),
        ({"access_key": "k"}, "store: access_key and secret_key belong together"),
        ({"secret_key": b"hidden"}, "store .* expected the store options of a dataset"),
        ({"fsspec": {"token": "t" * 20_000}}, "store .* at most 16384 characters"),
    ],
)
def test_a_store_that_makes_no_sense_is_told(
    url: str, runtime: Path, store: dict[str, object], said: str
) -> None:
    """What is wrong and what is wanted, with no value that may be secret."""
    del runtime
    with pytest.raises(HeadraceError, match=said) as caught:
        next(
            iter(
                RemoteDataset(
                    None,
                    url,
                    batch_size=16,
                    transport=Transport(private=PrivateServer(store=store)),
                )
            )
        )

    assert "hidden" not in str(caught.value)


@pytest.mark.usefixtures("runtime")
def test_lists_may_hold_nulls_where_the_job_says_so(tmp_path: Path) -> None:
    """A table of Spark has such lists, and a private server has no command line."""
    pq.write_table(pa.table({"id": [1], "tags": [[1, None]]}), tmp_path / "a.parquet")
    private = PrivateServer(item_nulls=True)

    with pytest.raises(UnsupportedColumnError, match="item_nulls=True"):
        list(RemoteDataset(None, str(tmp_path), batch_size=1, epochs=1))
    (batch,) = RemoteDataset(
        None, str(tmp_path), batch_size=1, epochs=1, transport=Transport(private=private)
    )

    assert [True, False] == batch.ragged["tags.items_valid"].values.tolist()


def test_jobs_and_stores_are_told_apart(runtime: Path) -> None:
    """Another launcher's job, other sources or other credentials have a server of their own."""
    environment = {"XDG_RUNTIME_DIR": str(runtime), "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
    settings = ["a=/data/a"]
    places = {
        rendezvous_of(settings, environment),
        rendezvous_of(["a=/data/b"], environment),
        rendezvous_of(settings, {**environment, "SLURM_JOB_ID": "2"}),
        rendezvous_of(settings, {**environment, "AWS_ENDPOINT_URL": "http://other"}),
    }

    assert 4 == len(places)
    assert rendezvous_of(settings, {**environment, "RANK": "3"}) in places


def test_a_url_without_a_dataset_is_the_loops_error(tmp_path: Path, runtime: Path) -> None:
    """What the server finds wrong at its start comes out of the loop, as its own class."""
    dataset = RemoteDataset(None, str(tmp_path / "nothing"), batch_size=4)

    with pytest.raises(NotADatasetError, match=r"private server of .*nothing cannot start"):
        next(iter(dataset))
    assert [] == server_pids(runtime)


def test_a_folder_that_others_may_enter_is_refused(url: str, runtime: Path) -> None:
    """Its sockets give data to whom they let in."""
    (runtime / "headrace").mkdir(mode=0o755)
    dataset = RemoteDataset(None, url, batch_size=4)

    with pytest.raises(ConfigurationError, match=r"mode 755.*mode 700"):
        next(iter(dataset))


def test_a_folder_with_too_long_a_path_is_refused_at_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a socket has a limit that no error of the socket names."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))

    with pytest.raises(ConfigurationError, match="107 bytes"):
        RemoteDataset(None, url, batch_size=4)


def _waiting(server: JobServer, stop: threading.Event) -> tuple[threading.Thread, list[Exception]]:
    """Start to wait for a server; return the thread, and where the error goes that ends it."""
    outcomes: list[Exception] = []

    def wait() -> None:
        try:
            server.address(stop, run="r", versions={})
        except HeadraceError as error:
            outcomes.append(error)

    thread = threading.Thread(target=wait, name="waiting", daemon=True)
    thread.start()
    return thread, outcomes


def test_closing_ends_the_wait_for_another_process(url: str, runtime: Path) -> None:
    """Who waits for a server that another process starts can be told to stop."""
    server = private_server({"small": url})
    make_folder(server.place.folder)
    lock, stop = try_lock(server.place.lock), threading.Event()
    assert lock is not None
    thread, outcomes = _waiting(server, stop)
    stop.set()
    thread.join(60)
    os.close(lock)

    assert not thread.is_alive()
    assert "another process" in str(outcomes[0])
    assert [] == server_pids(runtime)


def test_closing_ends_the_wait_for_a_server_that_does_not_answer(url: str, runtime: Path) -> None:
    """A server that accepts a lease and hangs is not waited for by one who is told to stop."""
    server = private_server({"small": url})
    make_folder(server.place.folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(server.place.lease))
        listener.listen()
        accepted = threading.Event()
        held: list[socket.socket] = []

        def accept() -> None:
            held.append(listener.accept()[0])
            accepted.set()

        accepting = threading.Thread(target=accept, name="accepting")
        accepting.start()
        stop = threading.Event()
        waiting, outcomes = _waiting(server, stop)
        assert accepted.wait(60)
        stop.set()
        waiting.join(30)
        accepting.join(30)
        held[0].close()

    assert not waiting.is_alive()
    assert "does not answer" in str(outcomes[0])
    assert [] == server_pids(runtime)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/deep/flowers", "flowers"),
        ("/data/flowers/", "flowers"),
        ("s3://bucket/flowers#0123456789abcdef0123456789abcdef", "flowers"),
        ("/data/täglich 2", "t-glich-2"),
        ("/", "dataset"),
    ],
)
def test_a_source_is_served_under_its_last_part(url: str, name: str) -> None:
    """Whatever the URL, the name is one that a server takes."""
    assert name == name_of_source(url)
