from headrace.v1 import shard_service_pb2 as _shard_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cast(_message.Message):
    __slots__ = ("column", "element_type")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    column: str
    element_type: _shard_service_pb2.ElementType
    def __init__(self, column: _Optional[str] = ..., element_type: _Optional[_Union[_shard_service_pb2.ElementType, str]] = ...) -> None: ...

class Pad(_message.Message):
    __slots__ = ("column", "length", "fill", "truncate")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    column: str
    length: int
    fill: float
    truncate: bool
    def __init__(self, column: _Optional[str] = ..., length: _Optional[int] = ..., fill: _Optional[float] = ..., truncate: bool = ...) -> None: ...

class Stack(_message.Message):
    __slots__ = ("column", "item_shape")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    ITEM_SHAPE_FIELD_NUMBER: _ClassVar[int]
    column: str
    item_shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, column: _Optional[str] = ..., item_shape: _Optional[_Iterable[int]] = ...) -> None: ...
