from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Ring(_message.Message):
    __slots__ = ("ring_bytes", "check_payload")
    RING_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECK_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ring_bytes: int
    check_payload: bool
    def __init__(self, ring_bytes: _Optional[int] = ..., check_payload: bool = ...) -> None: ...

class RingOffer(_message.Message):
    __slots__ = ("version", "ticket", "warning")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    version: int
    ticket: bytes
    warning: str
    def __init__(self, version: _Optional[int] = ..., ticket: _Optional[bytes] = ..., warning: _Optional[str] = ...) -> None: ...
