from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Deal(_message.Message):
    __slots__ = ("length_cost", "square_cost", "speeds", "accumulate", "sizes", "in_order", "cost")
    LENGTH_COST_FIELD_NUMBER: _ClassVar[int]
    SQUARE_COST_FIELD_NUMBER: _ClassVar[int]
    SPEEDS_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    length_cost: float
    square_cost: float
    speeds: _containers.RepeatedScalarFieldContainer[float]
    accumulate: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    in_order: bool
    cost: str
    def __init__(self, length_cost: _Optional[float] = ..., square_cost: _Optional[float] = ..., speeds: _Optional[_Iterable[float]] = ..., accumulate: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., in_order: bool = ..., cost: _Optional[str] = ...) -> None: ...
