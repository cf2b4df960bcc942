"""Clients of the metrics that do not behave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter

from headrace.server.telemetry.metrics_endpoint import MetricsEndpoint, start_metrics_endpoint
from support.no_descriptors import no_descriptors
from support.waiting import until

_WAIT_S = 60
_LOOKS_S = 1.0


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    """An endpoint with one counter."""
    registry = CollectorRegistry()
    Counter("scrapes", "Of this test.", registry=registry)
    with closing(start_metrics_endpoint("127.0.0.1:0", registry)) as running:
        yield running


def _connected(endpoint: MetricsEndpoint) -> socket.socket:
    host, port = endpoint.address.split(":")
    return socket.create_connection((host, int(port)), _WAIT_S)


def _scraped(endpoint: MetricsEndpoint) -> str:
    with urlopen(f"http://{endpoint.address}/metrics", timeout=_WAIT_S) as answer:
        return str(answer.read(), "utf-8")


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\nHost: h"])
def test_clients_that_ask_nothing_hold_few_threads(endpoint: MetricsEndpoint, said: bytes) -> None:
    """A hundred connect and never finish a request: most are closed, and a scrape is answered."""
    before = threading.active_count()
    with ExitStack() as clients:
        for _ in range(100):
            client = clients.enter_context(_connected(endpoint))
            client.sendall(said)

        assert "scrapes_total 0.0" in _scraped(endpoint)
        assert until(lambda: threading.active_count() - before <= 40)


def test_without_a_descriptor_it_rests(endpoint: MetricsEndpoint) -> None:
    """A connection that cannot be accepted yet costs next to no processor time."""
    assert endpoint.thread.ident is not None
    clock = time.pthread_getcpuclockid(endpoint.thread.ident)
    host, port = endpoint.address.split(":")
    with socket.socket() as client:
        with no_descriptors():
            client.connect((host, int(port)))
            before_s = time.clock_gettime(clock)
            threading.Event().wait(_LOOKS_S)
            used_s = time.clock_gettime(clock) - before_s

        assert "scrapes_total" in _scraped(endpoint)
    assert used_s < _LOOKS_S / 20
