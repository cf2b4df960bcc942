"""Run the real Envoy with the configuration that deploy/ has for it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

CONFIG = Path(__file__).parents[2] / "deploy/envoy/envoy.yaml"
BINARY = Path(sys.executable).parent / "envoy"
_READY_S = 60.0


def configured(
    *, listen: tuple[str, int], server: str, health: str, tls: Path | None
) -> dict[str, Any]:
    """Return the configuration with other places, and with no TLS if no folder of it is given.

    Args:
        listen: Host and port for clients.
        server: ``host:port`` of the server.
        health: ``host:port`` of its health service.
        tls: The folder with ``tls.crt``, ``tls.key`` and ``ca.crt``.
    """
    text = CONFIG.read_text()
    if tls is not None:
        text = text.replace("/etc/headrace-tls", str(tls))
    found: dict[str, Any] = yaml.safe_load(text)
    listener = found["static_resources"]["listeners"][0]
    listener["address"]["socket_address"] = {"address": listen[0], "port_value": listen[1]}
    if tls is None:
        del listener["filter_chains"][0]["transport_socket"]
    cluster = found["static_resources"]["clusters"][0]
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    host, _, port = server.rpartition(":")
    endpoint["address"]["socket_address"] = {"address": host, "port_value": int(port)}
    endpoint["health_check_config"]["port_value"] = int(health.rpartition(":")[2])
    return found


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def envoy(
    folder: Path,
    *,
    server: str,
    health: str,
    tls: Path | None = None,
    change: Callable[[dict[str, Any]], None] = lambda _config: None,
) -> Iterator[str]:
    """Run Envoy before a server; yield ``host:port`` for clients.

    Args:
        folder: For its configuration and its log.
        server: ``host:port`` of the server.
        health: ``host:port`` of its health service.
        tls: The folder with its certificates; None for no TLS.
        change: Changes the configuration in place.
    """
    port = free_port()
    file, log = folder / "envoy.yaml", folder / "envoy.log"
    listen = ("127.0.0.1", port)
    config = configured(listen=listen, server=server, health=health, tls=tls)
    change(config)
    file.write_text(yaml.safe_dump(config))
    # One thread, and no shared memory, so that several can run on one machine.
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
    with log.open("w") as said:
        process = subprocess.Popen(
            [str(BINARY), "--config-path", str(file), *options], stdout=said, stderr=said
        )
    try:
        _wait_for(process, port, log)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    from support.waiting import until  # noqa: PLC0415

    def is_there() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"Envoy ended: {log.read_text()[-2000:]}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    assert until(is_there, timeout_s=_READY_S), log.read_text()[-2000:]
