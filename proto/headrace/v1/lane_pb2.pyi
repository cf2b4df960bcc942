from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Lane(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class LaneOffer(_message.Message):
    __slots__ = ("version", "host", "port", "ticket", "is_encrypted", "grpc_ports")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    IS_ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    host: str
    port: int
    ticket: bytes
    is_encrypted: bool
    grpc_ports: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., ticket: _Optional[bytes] = ..., is_encrypted: bool = ..., grpc_ports: _Optional[_Iterable[int]] = ...) -> None: ...
