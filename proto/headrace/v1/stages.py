"""A stage in a request: the message of its options, whose type names it."""

from __future__ import annotations

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message


def packed(options: Message) -> Any:
    """Return options as requests hold them; equal options have equal bytes."""
    found = Any()
    found.Pack(options, deterministic=True)
    return found
