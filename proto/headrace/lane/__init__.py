"""The lane: what a server and a client exchange on a connection beside gRPC, with no I/O.

``docs/lane.md`` specifies it so that another language could implement it.
"""

from headrace.lane.frames import (
    FRAME_BYTES,
    Frame,
    end_frame,
    frame,
    read_frame,
)
from headrace.lane.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    TICKET_BYTES,
    Hello,
    answer,
    hello,
    proof_of,
    read_answer,
    read_hello,
)

VERSION = 1
"""Version of everything in this package."""

__all__ = [
    "ANSWER_BYTES",
    "FRAME_BYTES",
    "HELLO_BYTES",
    "TICKET_BYTES",
    "VERSION",
    "Frame",
    "Hello",
    "answer",
    "end_frame",
    "frame",
    "hello",
    "proof_of",
    "read_answer",
    "read_frame",
    "read_hello",
]
