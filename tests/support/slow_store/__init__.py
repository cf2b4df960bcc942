"""A store with the latencies of S3, for benchmarks and tests: a small range server in C++.

``range_server.cc`` is compiled when it is first needed, with ``g++`` and the headers of OpenSSL
(Debian's ``g++`` and ``libssl-dev``), and kept beside other temporary files. It serves a folder:
the path of a request is ``/bucket/key``, and the bucket is not looked at. Signatures are not
checked, nothing can be listed or written. What can be set, also while it runs (`SlowStore.set`):

- ``median_ms`` and ``p99_ms``, of the lognormal time to an answer's first byte (20 and 150);
- ``mb_per_s``, the most that a connection gives (80);
- ``refused``, the part of GETs that are answered by 503;
- ``stalled`` and ``stall_s``, the part of GETs whose body stops in its middle, and how long;
- ``down``: 1 closes connections without an answer.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_SOURCE = Path(__file__).with_name("range_server.cc")


@dataclass(frozen=True, slots=True)
class Counted:
    """What a store has counted, since it began or between two moments.

    Attributes:
        gets: GETs of shards that were served.
        bytes: What they brought.
        others: Requests for other objects.
        refused: GETs that were answered by 503.
        stalled: GETs whose body stopped for a time.
        connections: That were opened.
        most_in_flight: Requests at once, at most, since it began.
        in_flight_s: Requests times the seconds that each took.
        busy_s: Seconds with a request.
        cpu_s: Processor seconds of the store itself.
    """

    gets: int
    bytes: int
    others: int
    refused: int
    stalled: int
    connections: int
    most_in_flight: int
    in_flight_s: float
    busy_s: float
    cpu_s: float

    def since(self, before: Counted) -> Counted:
        """Return what came after an earlier moment."""
        names = self.__dataclass_fields__
        changes = {name: getattr(self, name) - getattr(before, name) for name in names}
        return Counted(**{**changes, "most_in_flight": self.most_in_flight})

    @property
    def in_flight(self) -> float:
        """Return how many requests there were at once, on average while there was one."""
        return self.in_flight_s / max(self.busy_s, 1e-9)


@dataclass(frozen=True, slots=True)
class SlowStore:
    """A running store.

    Attributes:
        endpoint: Its address.
        certificate: What it shows over TLS, which clients are to trust; None without.
    """

    endpoint: str
    certificate: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """Return what lets boto3, and so headrace, find it."""
        found = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_REGION": "us-east-1",
        }
        return found | ({"AWS_CA_BUNDLE": str(self.certificate)} if self.certificate else {})

    def counted(self) -> Counted:
        """Return what it has counted so far."""
        return Counted(**json.loads(self._ask("/__stats")))

    def set(self, name: str, value: float) -> None:
        """Change a setting from the next answer on."""
        self._ask(f"/__set?{name}={value}")

    def _ask(self, path: str) -> bytes:
        parts = urlsplit(self.endpoint)
        connection: http.client.HTTPConnection
        if self.certificate:
            trust = ssl.create_default_context(cafile=self.certificate)
            connection = http.client.HTTPSConnection(parts.netloc, timeout=60, context=trust)
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        with closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise ValueError(f"the store answers {path} with {answer.status}")
            return answer.read()


@contextmanager
def slow_store(folder: Path, *, tls: bool = False, **settings: float) -> Iterator[SlowStore]:
    """Serve a folder while the context lasts."""
    with tempfile.TemporaryDirectory() as kept:
        certificate, key = _certificate(Path(kept)) if tls else (None, None)
        command = [compiled(), str(folder), str(certificate or ""), str(key or "")]
        command += [f"{name}={value}" for name, value in settings.items()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            endpoint = process.stdout.readline().strip()
            if not endpoint:
                raise RuntimeError(f"the store did not start; it ended with {process.wait()}")
            try:
                yield SlowStore(endpoint, certificate)
            finally:
                process.kill()


@contextmanager
def reached(store: SlowStore) -> Iterator[None]:
    """Let this process and its children find a store."""
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ |= store.environment
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def can_be_compiled() -> bool:
    """Return whether there is a compiler, and the headers of OpenSSL."""
    if shutil.which("g++") is None:
        return False
    probe = ["g++", "-x", "c++", "-fsyntax-only", "-include", "openssl/ssl.h", os.devnull]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def compiled() -> str:
    """Return the path of the compiled server, which is made where it is not there yet."""
    name = f"headrace-range-server-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}"
    program = Path(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    if not program.exists():
        fresh = program.with_suffix(f".{os.getpid()}")
        command = ["g++", "-std=c++17", "-O2", "-pthread", str(_SOURCE), "-o", str(fresh)]
        subprocess.run([*command, "-lssl", "-lcrypto"], check=True)
        fresh.replace(program)
    return str(program)


def _certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "store.pem", folder / "store.key"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    places = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *places, *subject], check=True, capture_output=True
    )
    return certificate, key
