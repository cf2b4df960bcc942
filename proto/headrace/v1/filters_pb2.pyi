from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Where(_message.Message):
    __slots__ = ("expression",)
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    expression: str
    def __init__(self, expression: _Optional[str] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("where", "digest", "sample_count")
    WHERE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    where: str
    digest: str
    sample_count: int
    def __init__(self, where: _Optional[str] = ..., digest: _Optional[str] = ..., sample_count: _Optional[int] = ...) -> None: ...
