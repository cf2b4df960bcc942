"""What cannot work is told at once, with what is missing: mounts, interpreters, sockets, ports."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.client import BatchLoader, RemoteDataset
from headrace.client.servers.private_server import private_server
from headrace.converter import convert_files
from headrace.errors import BadArgumentError, ConfigurationError
from headrace.server import ServerConfig
from headrace.server.process.page_process import check_page
from headrace.storage import open_dataset, open_store, store_index
from support.private import end_servers

_NOWHERE = ["dbfs:/Volumes/no-catalog/schema/volume/d", "dbfs:/no-mount/d", "dbfs:///no-mount/d"]


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file of ten rows."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": range(10)}), path)
    return str(path)


@pytest.mark.skipif(Path("/dbfs").is_mount(), reason="this machine is one of Databricks")
@pytest.mark.parametrize("url", _NOWHERE)
def test_a_mount_that_is_not_there_is_an_error(source: str, url: str) -> None:
    """Nothing is written to the disk below it, and reading says the same."""
    with pytest.raises(ConfigurationError, match="is not mounted here: this machine"):
        convert_files(source, url, source_format="parquet")
    with pytest.raises(ConfigurationError, match="is not mounted here"):
        open_dataset(url)

    assert not Path("/dbfs").exists()
    assert not Path("/Volumes/no-catalog").exists()


def test_a_url_means_the_same_to_a_private_server() -> None:
    """Whatever has a scheme goes to the server as it is; everything else is a local path."""
    urls = ["dbfs:/Volumes/a/b/c", "dbfs:/mnt/d", "s3:/one-slash", "s3://bucket/d", "zip://a::/b"]
    paths = ["d", "a/b:c", "./dbfs:/x", "run:1"]
    server = private_server({str(number): url for number, url in enumerate([*urls, *paths])})

    found = [url for _, url in server.sources]
    assert urls == found[: len(urls)]
    assert [str(Path(path).absolute()) for path in paths] == found[len(urls) :]


@pytest.mark.skipif(Path("/dbfs").is_mount(), reason="this machine is one of Databricks")
def test_a_private_server_tells_of_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RemoteDataset(None, URL) says what write_shards says, and looks into no folder of here."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with (
        closing(RemoteDataset(None, _NOWHERE[0], batch_size=2)) as dataset,
        pytest.raises(ConfigurationError, match="is not mounted here: this machine"),
    ):
        next(iter(dataset))
    end_servers(tmp_path)


@pytest.mark.skipif(Path("/dbfs").is_mount(), reason="this machine is one of Databricks")
def test_an_index_names_the_mount(tmp_path: Path) -> None:
    """The source of a stored index is sought where it is mounted."""
    with pytest.raises(ConfigurationError, match="is not mounted here"):
        store_index(_NOWHERE[0], str(tmp_path / "index"))


@pytest.mark.parametrize("mode", [0o600, None])
def test_an_interpreter_that_may_not_run_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    """One that is not executable, or gone: named with the reason, and not asked again."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    program = tmp_path / "python"
    if mode is not None:
        program.write_text("")
        program.chmod(mode)
    monkeypatch.setattr(sys, "executable", str(program))
    with (
        closing(RemoteDataset(None, str(tmp_path / "d"), batch_size=2)) as dataset,
        pytest.raises(ConfigurationError, match="python cannot be run here"),
    ):
        next(iter(dataset))


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_are_told_of_a_long_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Its name and the limit, instead of AF_UNIX path too long or a wait without end."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("multiprocessing.util.get_temp_dir", lambda: str(long))
    dataset = RemoteDataset("127.0.0.1:1", "d", batch_size=2)

    with pytest.raises(ConfigurationError, match=r"xxx.*set TMPDIR to a folder with a shorter"):
        BatchLoader(dataset, num_workers=2, start_method=method)  # type: ignore[arg-type] # of pytest


def test_a_page_whose_port_is_taken_ends_with_words() -> None:
    """The server does not start, and says which address is taken and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = ServerConfig(datasets={"d": "nowhere"}, listen="127.0.0.1:0", page=address)

        with pytest.raises(
            ConfigurationError, match=f"cannot listen on {address} .*in use.*--page"
        ):
            check_page(config)
    check_page(config)


def test_a_url_with_one_slash_is_refused_everywhere() -> None:
    """The store says what is wrong, and so does a private server that gets the URL as it is."""
    with pytest.raises(BadArgumentError, match="has one slash"):
        open_store("s3:/bucket/d")
