"""Call a server before its clients do, to find out whether it works with the installed grpcio.

A server uses parts of grpcio that are not public. If one of them behaves otherwise, the server
would say that it is ready, and every call would hang.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from headrace.errors import ConfigurationError
from headrace.server.front.health import SERVICE as HEALTH
from headrace.server.front.reflection import SERVICE as REFLECTION
from headrace.server.front.wire_server import WireServer

# A call that works takes a millisecond, and servers start more often than grpcio changes.
_TIMEOUT_S, _SOON_S, _LOOK_S = 20.0, 0.005, 0.0005
_ANSWERED = 3
"""Calls that have an answer; the one with a short time may have ended before its turn."""
_QUESTION = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()


@contextmanager
def self_called(server: WireServer, bind: Callable[[str], object]) -> Iterator[None]:
    """Bind a server to a socket of its own, and call it there when the block has started it.

    Args:
        server: The server.
        bind: Binds it to an address, without certificates.

    Raises:
        ConfigurationError: An answer is missing or wrong.
    """
    # Only this user may enter the folder, and it is gone when clients come.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        address = f"unix:{folder}/self"
        bind(address)
        yield
        with grpc.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            failed = _failed(channel, server)
    if failed:
        raise ConfigurationError(
            f"this server does not work with grpcio {grpc.__version__}: a call of its own failed "
            f"({failed}); install the version that headrace was tested with "
            "(pip install 'headrace[server]')"
        )


def _failed(channel: grpc.Channel, server: WireServer) -> str:
    """Return what does not work, in words; nothing if all does."""
    check: Any = channel.unary_unary(f"/{HEALTH}/Check", None, None)
    ask: Any = channel.stream_stream(f"/{REFLECTION}/ServerReflectionInfo", None, None)
    over = threading.Event()

    def endless() -> Iterator[bytes]:
        yield _QUESTION
        over.wait(_TIMEOUT_S)

    try:
        late = ask(endless(), timeout=_SOON_S)
        given_up = ask(endless(), timeout=_TIMEOUT_S)
        answered = ask(iter([_QUESTION, _QUESTION]), timeout=_TIMEOUT_S)
        status = health_pb2.HealthCheckResponse.FromString(check(b"", timeout=_TIMEOUT_S)).status
        next(given_up)
        given_up.cancel()
        is_so = {
            "a health check is answered": bool(status),
            "a stream is answered": len(list(answered)) == 2,  # noqa: PLR2004 - questions
            "a call is cancelled": given_up.code() is grpc.StatusCode.CANCELLED,
            "a call ends in time": late.code() is grpc.StatusCode.DEADLINE_EXCEEDED,
            "calls end": _have_ended(server, _ANSWERED),
        }
    except (grpc.RpcError, StopIteration) as error:
        return str(error) or "a stream ended early"
    finally:
        over.set()
    return ", ".join(f"not so: {what}" for what, is_true in is_so.items() if not is_true)


def _have_ended(server: WireServer, count: int) -> bool:
    # Clients may be there by now, whose calls last: those that are open say nothing.
    deadline = time.monotonic() + _TIMEOUT_S
    while server.ended_count < count and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return server.ended_count >= count
