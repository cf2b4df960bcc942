"""Run a real server inside a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from headrace.server import Server, ServerConfig, start_server

RICH_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Running:
    """A server and a channel to it."""

    server: Server
    channel: grpc.Channel


@contextmanager
def running(url: str, **settings: object) -> Iterator[Running]:
    """Run a server of the dataset ``rich`` on a free port."""
    stated = {"listen": "127.0.0.1:0", **settings}
    config = ServerConfig(datasets={"rich": url}, **stated)  # type: ignore[arg-type]  # tests name the settings they mean
    with start_server(config) as server, grpc.insecure_channel(server.address) as channel:
        yield Running(server, channel)
