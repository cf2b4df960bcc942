from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Mesh(_message.Message):
    __slots__ = ("text", "rank", "job")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    text: str
    rank: int
    job: str
    def __init__(self, text: _Optional[str] = ..., rank: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...
