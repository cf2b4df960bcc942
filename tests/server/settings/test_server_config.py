"""Tests of the settings: every bad value is refused with the value and what to do."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigurationError
from headrace.server import ServerConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"datasets": {}}, "no dataset to serve"),
        ({"datasets": {"a b": "/x"}}, "'a b' is not a valid dataset name"),
        ({"datasets": {"": "/x"}}, "'' is not a valid dataset name"),
        ({"listen": "localhost"}, "'localhost' is not an address to listen on"),
        ({"listen": "localhost:http"}, "'localhost:http' is not an address"),
        ({"listen": "localhost:65536"}, "'localhost:65536' is not an address"),
        ({"listen": ()}, "no address to listen on"),
        ({"metrics_listen": "unix:/x"}, "metrics cannot be served on 'unix:/x'"),
        ({"metrics_listen": "9090"}, "'9090' is not an address"),
        ({"cache_bytes": 0}, "cache_bytes is 0; it must be 1 or more"),
        ({"fetch_threads": 0}, "fetch_threads is 0"),
        ({"max_streams": 0}, "max_streams is 0"),
        ({"max_batch_bytes": 0}, "max_batch_bytes is 0"),
        ({"prefetch_bytes": -1}, "prefetch_bytes is -1"),
        ({"drain_s": -1.0}, "drain_s is -1.0"),
        ({"max_stream_s": float("nan")}, "max_stream_s is nan"),
        ({"heartbeat_s": 0.0}, "heartbeat_s is 0.0; it must be above 0"),
        ({"store_timeout_s": -1.0}, "store_timeout_s is -1.0"),
        ({"drain_s": float("inf")}, "drain_s is inf; it must be 0 or more, and finite"),
        (
            {"stage_timeout_s": float("inf")},
            "stage_timeout_s is inf; it must be above 0, and finite",
        ),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    """A setting outside its range names itself and its value."""
    with pytest.raises(ConfigurationError, match=message):
        ServerConfig(**{"datasets": {"a": "/x"}, **settings})  # type: ignore[arg-type]  # that is the point


def test_one_address_or_several() -> None:
    """A single address is a tuple of one; unix sockets and IPv6 are addresses."""
    several = ("127.0.0.1:0", "[::1]:50051", "unix:/run/headrace.sock")

    assert ("h:1",) == ServerConfig(datasets={"a": "/x"}, listen="h:1").addresses
    assert several == ServerConfig(datasets={"a": "/x"}, listen=several).addresses


def test_a_configuration_does_not_change() -> None:
    """What the caller does to the mapping afterwards does not reach the server."""
    urls = {"a": "/x"}
    config = ServerConfig(datasets=urls)

    urls["b"] = "/y"

    assert {"a": "/x"} == dict(config.datasets)
