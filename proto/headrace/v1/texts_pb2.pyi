from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Tokenize(_message.Message):
    __slots__ = ("column", "tokenizer", "digest", "special_tokens")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    column: str
    tokenizer: str
    digest: str
    special_tokens: bool
    def __init__(self, column: _Optional[str] = ..., tokenizer: _Optional[str] = ..., digest: _Optional[str] = ..., special_tokens: bool = ...) -> None: ...
