from headrace.v1 import shard_service_pb2 as _shard_service_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Skip(_message.Message):
    __slots__ = ("list", "allow_new_list", "token_list")
    LIST_FIELD_NUMBER: _ClassVar[int]
    ALLOW_NEW_LIST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LIST_FIELD_NUMBER: _ClassVar[int]
    list: _shard_service_pb2.SkipList
    allow_new_list: bool
    token_list: _shard_service_pb2.SkipList
    def __init__(self, list: _Optional[_Union[_shard_service_pb2.SkipList, _Mapping]] = ..., allow_new_list: bool = ..., token_list: _Optional[_Union[_shard_service_pb2.SkipList, _Mapping]] = ...) -> None: ...
