"""A stream that gets no thread gives its place back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import ServerBusyError
from headrace.server.front.methods import streaming
from headrace.v1 import shard_service_pb2 as pb


def test_a_stream_without_a_thread_leaves_its_place() -> None:
    """The place is taken before the thread, so a full queue of threads must free it again."""
    taken = []

    @contextmanager
    def admit(call: Any) -> Iterator[None]:
        taken.append(call)
        try:
            yield
        finally:
            taken.remove(call)

    full: Any = SimpleNamespace(submit=lambda work, **_: not work)
    call: Any = SimpleNamespace(line="somebody", is_active=True, guarded=lambda work: work())
    method = streaming(
        pb.ReadBatchesRequest,
        full,
        lambda *_: iter([b""]),
        sender=lambda call: call.send,
        check=lambda _call: None,
        admit=admit,
    )

    with pytest.raises(ServerBusyError):
        method.received(call, b"")
    assert [] == taken
