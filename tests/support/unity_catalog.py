"""A stand-in for Unity Catalog, written from the published REST API: tables and their keys.

It injects faults: statuses, expiry, keys of other stores, and none at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.http_serving import http_serving

_TABLES = "/api/2.1/unity-catalog/tables/"
_VOLUMES = "/api/2.1/unity-catalog/volumes/"
_KEYS = {
    "/api/2.0/unity-catalog/temporary-table-credentials": ("table_id", "READ", ""),
    "/api/2.0/unity-catalog/temporary-volume-credentials": (
        "volume_id",
        "READ_VOLUME",
        "WRITE_VOLUME",
    ),
}


@dataclass
class UnityCatalog:
    """A running catalog.

    Attributes:
        tables: What it says about tables, by their full names.
        volumes: What it says about volumes, likewise.
        keys: The keys that it gives, by names of the API; a new answer each time.
        writing_keys: Those that write; `None` refuses.
        life_s: How long they live; `None` leaves the expiry out.
        status: With which status it answers all requests, unless 200.
        requests: The paths of all requests.
        address: Where it listens.
    """

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    volumes: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    writing_keys: Mapping[str, Any] | None = None
    life_s: float | None = 3600.0
    status: int = 200
    requests: list[str] = field(default_factory=list)
    address: str = ""

    def add(self, name: str, location: str, **more: Any) -> None:
        """Add a table of Delta."""
        self.tables[name] = {
            "full_name": name,
            "table_id": f"id-of-{name}",
            "table_type": "MANAGED",
            "data_source_format": "DELTA",
            "storage_location": location,
            **more,
        }

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return a status and an answer."""
        self.requests.append(path)
        if self.status != 200:
            return self.status, _error("INJECTED", "as the test wants it")
        if path.startswith(_TABLES):
            found = self.tables.get(path.removeprefix(_TABLES))
            return (200, found) if found else (404, _error("TABLE_DOES_NOT_EXIST", "no table"))
        if path.startswith(_VOLUMES):
            found = self.volumes.get(path.removeprefix(_VOLUMES))
            return (200, found) if found else (404, _error("VOLUME_DOES_NOT_EXIST", "no volume"))
        if path in _KEYS:
            name, reads, writes = _KEYS[path]
            known = {one.get(name) for one in (*self.tables.values(), *self.volumes.values())}
            keys = {reads: self.keys, writes: self.writing_keys}.get(body.get("operation", "?"))
            if body.get(name) not in known or keys is None:
                return 404, _error("DOES_NOT_EXIST", f"there is nothing with {body}")
            expiry = {} if self.life_s is None else _expiry(self.life_s)
            return 200, {**keys, **expiry}
        return 404, _error("ENDPOINT_NOT_FOUND", path)


def _expiry(life_s: float) -> dict[str, int]:
    return {"expiration_time": int((time.time() + life_s) * 1000)}


def _error(code: str, message: str) -> dict[str, str]:
    return {"error_code": code, "message": message}


class _Handler(BaseHTTPRequestHandler):
    catalog: UnityCatalog

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self._answer(json.loads(self.rfile.read(length) or b"{}"))

    def _answer(self, body: dict[str, Any]) -> None:
        status, answer = self.catalog.answer(self.path.partition("?")[0], body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def unity_catalog() -> Iterator[UnityCatalog]:
    """Run a catalog without tables."""
    catalog = UnityCatalog()
    with http_serving(_Handler, catalog=catalog) as port:
        catalog.address = f"http://127.0.0.1:{port}"
        yield catalog
