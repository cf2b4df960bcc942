"""Catalogs: the keys that they give, and what is said when they give none, refuse or are away."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from headrace.errors import StoreRefusedError, StoreUnavailableError, WorldError
from headrace.storage import RetryPolicy, StoreOptions, open_dataset
from headrace.storage.iceberg.catalog import TableVendor, asked, find_table
from headrace.storage.iceberg.table_name import table_name
from headrace.storage.store.lease import Lease
from support.http_serving import http_serving
from support.weed_catalog import weed_catalog

_URL = "iceberg://weed/n.t"
_ONCE = StoreOptions(retry=RetryPolicy(attempts=1))


@pytest.fixture
def nobodys_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials of S3 but those that a catalog gives."""
    for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{part}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


@pytest.mark.usefixtures("nobodys_keys")
def test_a_table_is_read_with_the_keys_of_its_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any of the server's own; they are renewed by loading the table again."""
    with weed_catalog(tmp_path, monkeypatch, life_s=900) as running:
        with open_dataset(_URL) as dataset:
            found = dataset.read_block(0).column("x").to_pylist()
        name = table_name(_URL)
        identity = str(running.catalog.load_table("n.t").metadata.table_uuid)
        lease = Lease(TableVendor(name, identity), first=find_table(name).grant)
        first = lease.get()
        other = Lease(TableVendor(name, "0" * 32))
        with pytest.raises(StoreRefusedError, match="another table now, of the same name"):
            other.get()

        assert list(range(10)) == found
        assert 0 < (first.expires_at_s or 0)
        assert first.values["secret_key"] not in f"{first!r} {lease!r} {find_table(name).grant!r}"


@pytest.mark.usefixtures("nobodys_keys")
def test_a_catalog_that_gives_no_keys_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers 200 all the same, to the first request for keys and to a later one."""
    with weed_catalog(tmp_path, monkeypatch, life_s=60):
        name = table_name(_URL)
        found = find_table(name)
        vendor = TableVendor(name, str(found.table.metadata.table_uuid))

        assert found.grant is None
        with pytest.raises(
            StoreRefusedError, match=r"'weed' gives no credentials for n\.t any more"
        ):
            vendor()


class _Refusing(BaseHTTPRequestHandler):
    """A catalog of REST that answers with one status."""

    status = 403

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a catalog that answers with the status of the test."""
    with http_serving(_Refusing, status=request.param) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("address", "kind", "said"),
    [
        (401, StoreRefusedError, "refuses n.t: Unauthorized"),
        (403, StoreRefusedError, "refuses n.t: Forbidden"),
        (503, StoreUnavailableError, "cannot be asked about n.t: ServiceUnavailable"),
    ],
    indirect=["address"],
)
def test_a_refusal_is_no_absence(
    monkeypatch: pytest.MonkeyPatch, address: str, kind: type[WorldError], said: str
) -> None:
    """What may pass is retried, what will not is refused, and tokens are in no message."""
    monkeypatch.setenv("PYICEBERG_CATALOG__WEED__URI", address)
    monkeypatch.setenv("PYICEBERG_CATALOG__WEED__TOKEN", "thorns-of-the-catalog")

    with pytest.raises(kind, match=said) as error:
        open_dataset(_URL, options=_ONCE)
    assert "thorns" not in f"{error.value} {error.value.metadata}"


def test_a_silent_catalog_does_not_hang() -> None:
    """Pyiceberg has no timeouts of its own."""
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def ask() -> bytes:
            with socket.create_connection(silent.getsockname()) as asking:
                return asking.recv(1)

        with pytest.raises(StoreUnavailableError, match=r"did not answer within 0.2 s about n.t"):
            asked(ask, name=table_name(_URL), deadline_s=0.2)
