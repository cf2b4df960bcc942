"""The ring: what a server and a client on one host exchange beside gRPC, as bytes, with no I/O.

``docs/ring.md`` specifies it so that another language could implement it.
"""

from headrace.ring.handshake import (
    HELLO_BYTES,
    REFUSAL_MOST_BYTES,
    TICKET_BYTES,
    hello,
    read_hello,
    refusal,
    ring_socket_of,
)
from headrace.ring.records import (
    RECORD_BYTES,
    Record,
    RecordKind,
    RecordReader,
    kind_of,
    record,
    releases,
)
from headrace.ring.slots import (
    SLOT_ALIGNMENT,
    SLOT_HEADER_BYTES,
    OpenSlot,
    open_slot,
    payload_start,
    seal_slot,
    void_slot,
)

VERSION = 1
"""Version of everything in this package."""

__all__ = [
    "HELLO_BYTES",
    "RECORD_BYTES",
    "REFUSAL_MOST_BYTES",
    "SLOT_ALIGNMENT",
    "SLOT_HEADER_BYTES",
    "TICKET_BYTES",
    "VERSION",
    "OpenSlot",
    "Record",
    "RecordKind",
    "RecordReader",
    "hello",
    "kind_of",
    "open_slot",
    "payload_start",
    "read_hello",
    "record",
    "refusal",
    "releases",
    "ring_socket_of",
    "seal_slot",
    "void_slot",
]
