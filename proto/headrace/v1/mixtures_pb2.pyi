from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batching(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BATCHING_UNSPECIFIED: _ClassVar[Batching]
    BATCHING_RANDOM: _ClassVar[Batching]
    BATCHING_STRATIFIED: _ClassVar[Batching]
    BATCHING_PER_DATASET: _ClassVar[Batching]

class Choice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHOICE_UNSPECIFIED: _ClassVar[Choice]
    CHOICE_FRESH: _ClassVar[Choice]
    CHOICE_FIXED: _ClassVar[Choice]
BATCHING_UNSPECIFIED: Batching
BATCHING_RANDOM: Batching
BATCHING_STRATIFIED: Batching
BATCHING_PER_DATASET: Batching
CHOICE_UNSPECIFIED: Choice
CHOICE_FRESH: Choice
CHOICE_FIXED: Choice

class MixtureDataset(_message.Message):
    __slots__ = ("name", "fingerprint", "proportion", "repeat", "choose", "choice", "granularity", "stages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROPORTION_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    CHOOSE_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRANULARITY_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    proportion: float
    repeat: float
    choose: int
    choice: Choice
    granularity: int
    stages: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., proportion: _Optional[float] = ..., repeat: _Optional[float] = ..., choose: _Optional[int] = ..., choice: _Optional[_Union[Choice, str]] = ..., granularity: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class SchedulePiece(_message.Message):
    __slots__ = ("start", "weights")
    START_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    start: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, start: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class Mixture(_message.Message):
    __slots__ = ("datasets", "batching", "epoch_size", "schedule")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[MixtureDataset]
    batching: Batching
    epoch_size: int
    schedule: _containers.RepeatedCompositeFieldContainer[SchedulePiece]
    def __init__(self, datasets: _Optional[_Iterable[_Union[MixtureDataset, _Mapping]]] = ..., batching: _Optional[_Union[Batching, str]] = ..., epoch_size: _Optional[int] = ..., schedule: _Optional[_Iterable[_Union[SchedulePiece, _Mapping]]] = ...) -> None: ...
