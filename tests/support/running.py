"""Run a real server inside a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from headrace.server import DatasetConfig, Server, ServerConfig, start_server

RICH_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Running:
    """A server and a channel to it."""

    server: Server
    channel: grpc.Channel


@contextmanager
def running(url: str, **settings: object) -> Iterator[Running]:
    """Run a server of the dataset ``rich`` on a free port."""
    with (
        server_of({"rich": url}, **settings) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        yield Running(server, channel)


def server_of(datasets: Mapping[str, str | DatasetConfig], **settings: Any) -> Server:
    """Start a server on a free port, unless the settings say where."""
    return start_server(ServerConfig(datasets=datasets, **{"listen": "127.0.0.1:0", **settings}))


@contextmanager
def channel_of(
    datasets: Mapping[str, str | DatasetConfig], **settings: Any
) -> Iterator[grpc.Channel]:
    """Run such a server, and open a channel to it."""
    with server_of(datasets, **settings) as server, grpc.insecure_channel(server.address) as opened:
        yield opened
