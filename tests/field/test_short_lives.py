"""Credentials that live for a minute, and a vendor that goes away: no stream notices."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client import Deadlines, RemoteDataset, Transport
from headrace.server import DatasetConfig
from headrace.storage import StoreOptions, commit_dataset, open_store
from support.http_serving import http_serving
from support.running import server_of
from support.shards import write_shard
from support.unity_catalog import UnityCatalog, unity_catalog

_KEY = re.compile(r"Credential=UNTIL(\d+)N\d+/")
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_STREAMS = 16
_BATCH = 64
_AWAY_LIVES = 2
_URL = "dbfs:/Volumes/main/travel/brief/d"


class _Fresh(Mapping[str, Any]):
    """What the catalog answers: each time other keys, which say when they end."""

    def __init__(self, life_s: float) -> None:
        self._life_s = life_s
        self.count = 0

    def __getitem__(self, name: str) -> Any:
        self.count += 1
        key = f"UNTIL{int((time.time() + self._life_s) * 1000)}N{self.count}"
        return {"access_key_id": key, "secret_access_key": "thorns", "session_token": "petals"}

    def __iter__(self) -> Iterator[str]:
        return iter(("aws_temp_credentials",))

    def __len__(self) -> int:
        return 1


class _Store(BaseHTTPRequestHandler):
    """S3 over a folder, which refuses keys that have ended."""

    protocol_version = "HTTP/1.1"
    folder: Path
    refused: list[float]

    def do_GET(self) -> None:
        """Answer with a range or with a whole object."""
        key = _KEY.search(self.headers.get("Authorization", ""))
        if key is None or int(key[1]) < time.time() * 1000:
            self.refused.append(time.time())
            self._answer(400, b"<Error><Code>ExpiredToken</Code></Error>")
            return
        path = self.folder / self.path.partition("?")[0].removeprefix("/b/")
        if not path.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        content = path.read_bytes()
        if (part := _RANGE.fullmatch(self.headers.get("Range", ""))) is None:
            self._answer(200, content)
            return
        first, last = int(part[1]), min(int(part[2]), len(content) - 1)
        said = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self._answer(206, content[first : last + 1], **said)

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "ETag": '"1"', **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def _write(folder: Path, count: int) -> None:
    """Write a dataset of shards of 40 blocks."""
    with closing(open_store(str(folder))) as store:
        columns: list[Any] = [pa.array(range(count)), pa.array([b"y" * 200] * count)]
        batch = pa.RecordBatch.from_arrays(columns, names=["x", "y"])
        step = count // 40
        parts = [batch.slice(first, step) for first in range(0, count, step)]
        commit_dataset(store, batch.schema, [write_shard(store, "a", parts)])


def _read(address: str, seed: int, until_s: float) -> tuple[int, int]:
    """Read epoch after epoch until a time; return the epochs, and the samples of the last."""
    transport = Transport(deadlines=Deadlines(give_up_s=300))
    loop = RemoteDataset(
        address, "trips", batch_size=_BATCH, seed=seed, end="uneven", transport=transport
    )
    epochs = 0
    with closing(loop):
        while True:
            seen: list[int] = []
            for batch in loop:
                seen += [int(number) for number in batch["x"]]
                time.sleep(0.05)
                if time.time() > until_s:
                    assert len(seen) == len(set(seen))
                    return epochs, len(seen)
            assert sorted(seen) == list(range(len(seen)))
            epochs += 1


def _lose(catalog: UnityCatalog, life_s: float, lives: int) -> None:
    """Let the vendor be away for two lives in the middle."""
    threading.Event().wait(life_s * (lives - _AWAY_LIVES) / 2)
    catalog.status = 503
    threading.Event().wait(life_s * _AWAY_LIVES)
    catalog.status = 200


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_keys_of_a_minute_serve_20_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 streams lose no batch while the catalog is away for two lives; few renewals are asked."""
    life_s, lives = 60.0, 20
    _write(tmp_path / "v" / "d", 20_000)
    for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{part}", raising=False)
    refused: list[float] = []
    fresh = _Fresh(life_s)
    with (
        unity_catalog() as catalog,
        http_serving(_Store, folder=tmp_path, refused=refused) as port,
    ):
        monkeypatch.setenv("DATABRICKS_HOST", catalog.address)
        monkeypatch.setenv("DATABRICKS_TOKEN", "thorns-of-databricks")
        monkeypatch.setenv("DATABRICKS_CONFIG_FILE", "/dev/null")
        catalog.keys = fresh
        catalog.life_s = life_s
        # A volume is remembered for as long as the process lives.
        name = f"v{port}"
        catalog.volumes[f"main.travel.{name}"] = {
            "volume_id": name,
            "storage_location": "s3://b/v",
        }
        reach = StoreOptions(endpoint=f"http://127.0.0.1:{port}", region="us-east-1")
        served = {"trips": DatasetConfig(url=_URL.replace("brief", name), store=reach)}
        asked = threading.Thread(target=_lose, args=(catalog, life_s, lives), name="vendor")
        with server_of(served, cache_bytes=1 << 20) as server:
            asked.start()
            until_s = time.time() + life_s * lives
            with ThreadPoolExecutor(_STREAMS, thread_name_prefix="stream") as pool:
                read = list(
                    pool.map(lambda seed: _read(server.address, seed, until_s), range(_STREAMS))
                )
            asked.join(60)

    assert _STREAMS == len(read)
    assert all(batches for _, batches in read)
    # Each of the two stretches begins with keys that are no renewal.
    assert fresh.count - 2 <= 1.2 * (lives - _AWAY_LIVES), (fresh.count, read, len(refused))
