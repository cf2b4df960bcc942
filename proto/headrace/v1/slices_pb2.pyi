from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SliceLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLICE_LAYOUT_UNSPECIFIED: _ClassVar[SliceLayout]
    SLICE_LAYOUT_CONTIGUOUS: _ClassVar[SliceLayout]
    SLICE_LAYOUT_ZIGZAG: _ClassVar[SliceLayout]
    SLICE_LAYOUT_DOCUMENTS: _ClassVar[SliceLayout]
SLICE_LAYOUT_UNSPECIFIED: SliceLayout
SLICE_LAYOUT_CONTIGUOUS: SliceLayout
SLICE_LAYOUT_ZIGZAG: SliceLayout
SLICE_LAYOUT_DOCUMENTS: SliceLayout

class Slice(_message.Message):
    __slots__ = ("columns", "part", "part_count", "layout", "fills", "boundaries", "positions", "without")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PART_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FILLS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedScalarFieldContainer[str]
    part: int
    part_count: int
    layout: SliceLayout
    fills: _containers.RepeatedScalarFieldContainer[float]
    boundaries: str
    positions: str
    without: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, columns: _Optional[_Iterable[str]] = ..., part: _Optional[int] = ..., part_count: _Optional[int] = ..., layout: _Optional[_Union[SliceLayout, str]] = ..., fills: _Optional[_Iterable[float]] = ..., boundaries: _Optional[str] = ..., positions: _Optional[str] = ..., without: _Optional[_Iterable[str]] = ...) -> None: ...
