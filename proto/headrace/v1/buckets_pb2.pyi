from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LengthBuckets(_message.Message):
    __slots__ = ("unit_count",)
    UNIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    unit_count: int
    def __init__(self, unit_count: _Optional[int] = ...) -> None: ...
