from headrace.v1 import shard_service_pb2 as _shard_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ImageFit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_FIT_UNSPECIFIED: _ClassVar[ImageFit]
    IMAGE_FIT_COVER: _ClassVar[ImageFit]
    IMAGE_FIT_CONTAIN: _ClassVar[ImageFit]
    IMAGE_FIT_STRETCH: _ClassVar[ImageFit]

class ImageLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_LAYOUT_UNSPECIFIED: _ClassVar[ImageLayout]
    IMAGE_LAYOUT_HWC: _ClassVar[ImageLayout]
    IMAGE_LAYOUT_CHW: _ClassVar[ImageLayout]

class BoxFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BOX_FORMAT_UNSPECIFIED: _ClassVar[BoxFormat]
    BOX_FORMAT_XYXY: _ClassVar[BoxFormat]
    BOX_FORMAT_XYWH: _ClassVar[BoxFormat]
    BOX_FORMAT_CXCYWH: _ClassVar[BoxFormat]

class OnError(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_ERROR_UNSPECIFIED: _ClassVar[OnError]
    ON_ERROR_RAISE: _ClassVar[OnError]
    ON_ERROR_SKIP: _ClassVar[OnError]
IMAGE_FIT_UNSPECIFIED: ImageFit
IMAGE_FIT_COVER: ImageFit
IMAGE_FIT_CONTAIN: ImageFit
IMAGE_FIT_STRETCH: ImageFit
IMAGE_LAYOUT_UNSPECIFIED: ImageLayout
IMAGE_LAYOUT_HWC: ImageLayout
IMAGE_LAYOUT_CHW: ImageLayout
BOX_FORMAT_UNSPECIFIED: BoxFormat
BOX_FORMAT_XYXY: BoxFormat
BOX_FORMAT_XYWH: BoxFormat
BOX_FORMAT_CXCYWH: BoxFormat
ON_ERROR_UNSPECIFIED: OnError
ON_ERROR_RAISE: OnError
ON_ERROR_SKIP: OnError

class DecodeImage(_message.Message):
    __slots__ = ("column", "height", "width", "channels", "fit", "transforms", "layout", "on_error", "masks", "boxes", "allow_decoder_change")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    TRANSFORMS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ON_ERROR_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    BOXES_FIELD_NUMBER: _ClassVar[int]
    ALLOW_DECODER_CHANGE_FIELD_NUMBER: _ClassVar[int]
    column: str
    height: int
    width: int
    channels: int
    fit: ImageFit
    transforms: _containers.RepeatedCompositeFieldContainer[ImageTransform]
    layout: ImageLayout
    on_error: OnError
    masks: _containers.RepeatedScalarFieldContainer[str]
    boxes: _containers.RepeatedCompositeFieldContainer[Boxes]
    allow_decoder_change: bool
    def __init__(self, column: _Optional[str] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., channels: _Optional[int] = ..., fit: _Optional[_Union[ImageFit, str]] = ..., transforms: _Optional[_Iterable[_Union[ImageTransform, _Mapping]]] = ..., layout: _Optional[_Union[ImageLayout, str]] = ..., on_error: _Optional[_Union[OnError, str]] = ..., masks: _Optional[_Iterable[str]] = ..., boxes: _Optional[_Iterable[_Union[Boxes, _Mapping]]] = ..., allow_decoder_change: bool = ...) -> None: ...

class Boxes(_message.Message):
    __slots__ = ("column", "format", "min_size", "labels")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MIN_SIZE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    column: str
    format: BoxFormat
    min_size: float
    labels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, column: _Optional[str] = ..., format: _Optional[_Union[BoxFormat, str]] = ..., min_size: _Optional[float] = ..., labels: _Optional[_Iterable[str]] = ...) -> None: ...

class ImageTransform(_message.Message):
    __slots__ = ("resize", "center_crop", "random_resized_crop", "random_horizontal_flip", "random_vertical_flip", "color_jitter", "random_erasing", "normalize")
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    CENTER_CROP_FIELD_NUMBER: _ClassVar[int]
    RANDOM_RESIZED_CROP_FIELD_NUMBER: _ClassVar[int]
    RANDOM_HORIZONTAL_FLIP_FIELD_NUMBER: _ClassVar[int]
    RANDOM_VERTICAL_FLIP_FIELD_NUMBER: _ClassVar[int]
    COLOR_JITTER_FIELD_NUMBER: _ClassVar[int]
    RANDOM_ERASING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    resize: Resize
    center_crop: CenterCrop
    random_resized_crop: RandomResizedCrop
    random_horizontal_flip: RandomHorizontalFlip
    random_vertical_flip: RandomVerticalFlip
    color_jitter: ColorJitter
    random_erasing: RandomErasing
    normalize: Normalize
    def __init__(self, resize: _Optional[_Union[Resize, _Mapping]] = ..., center_crop: _Optional[_Union[CenterCrop, _Mapping]] = ..., random_resized_crop: _Optional[_Union[RandomResizedCrop, _Mapping]] = ..., random_horizontal_flip: _Optional[_Union[RandomHorizontalFlip, _Mapping]] = ..., random_vertical_flip: _Optional[_Union[RandomVerticalFlip, _Mapping]] = ..., color_jitter: _Optional[_Union[ColorJitter, _Mapping]] = ..., random_erasing: _Optional[_Union[RandomErasing, _Mapping]] = ..., normalize: _Optional[_Union[Normalize, _Mapping]] = ...) -> None: ...

class Resize(_message.Message):
    __slots__ = ("size", "max_size")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    size: _containers.RepeatedScalarFieldContainer[int]
    max_size: int
    def __init__(self, size: _Optional[_Iterable[int]] = ..., max_size: _Optional[int] = ...) -> None: ...

class CenterCrop(_message.Message):
    __slots__ = ("height", "width")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class RandomResizedCrop(_message.Message):
    __slots__ = ("height", "width", "least_scale", "greatest_scale", "least_ratio", "greatest_ratio")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LEAST_SCALE_FIELD_NUMBER: _ClassVar[int]
    GREATEST_SCALE_FIELD_NUMBER: _ClassVar[int]
    LEAST_RATIO_FIELD_NUMBER: _ClassVar[int]
    GREATEST_RATIO_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    least_scale: float
    greatest_scale: float
    least_ratio: float
    greatest_ratio: float
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ..., least_scale: _Optional[float] = ..., greatest_scale: _Optional[float] = ..., least_ratio: _Optional[float] = ..., greatest_ratio: _Optional[float] = ...) -> None: ...

class RandomHorizontalFlip(_message.Message):
    __slots__ = ("p",)
    P_FIELD_NUMBER: _ClassVar[int]
    p: float
    def __init__(self, p: _Optional[float] = ...) -> None: ...

class RandomVerticalFlip(_message.Message):
    __slots__ = ("p",)
    P_FIELD_NUMBER: _ClassVar[int]
    p: float
    def __init__(self, p: _Optional[float] = ...) -> None: ...

class ColorJitter(_message.Message):
    __slots__ = ("brightness", "contrast", "saturation", "hue")
    BRIGHTNESS_FIELD_NUMBER: _ClassVar[int]
    CONTRAST_FIELD_NUMBER: _ClassVar[int]
    SATURATION_FIELD_NUMBER: _ClassVar[int]
    HUE_FIELD_NUMBER: _ClassVar[int]
    brightness: _containers.RepeatedScalarFieldContainer[float]
    contrast: _containers.RepeatedScalarFieldContainer[float]
    saturation: _containers.RepeatedScalarFieldContainer[float]
    hue: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, brightness: _Optional[_Iterable[float]] = ..., contrast: _Optional[_Iterable[float]] = ..., saturation: _Optional[_Iterable[float]] = ..., hue: _Optional[_Iterable[float]] = ...) -> None: ...

class RandomErasing(_message.Message):
    __slots__ = ("p", "least_scale", "greatest_scale", "least_ratio", "greatest_ratio", "value")
    P_FIELD_NUMBER: _ClassVar[int]
    LEAST_SCALE_FIELD_NUMBER: _ClassVar[int]
    GREATEST_SCALE_FIELD_NUMBER: _ClassVar[int]
    LEAST_RATIO_FIELD_NUMBER: _ClassVar[int]
    GREATEST_RATIO_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    p: float
    least_scale: float
    greatest_scale: float
    least_ratio: float
    greatest_ratio: float
    value: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, p: _Optional[float] = ..., least_scale: _Optional[float] = ..., greatest_scale: _Optional[float] = ..., least_ratio: _Optional[float] = ..., greatest_ratio: _Optional[float] = ..., value: _Optional[_Iterable[float]] = ...) -> None: ...

class Normalize(_message.Message):
    __slots__ = ("mean", "std", "element_type")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    mean: _containers.RepeatedScalarFieldContainer[float]
    std: _containers.RepeatedScalarFieldContainer[float]
    element_type: _shard_service_pb2.ElementType
    def __init__(self, mean: _Optional[_Iterable[float]] = ..., std: _Optional[_Iterable[float]] = ..., element_type: _Optional[_Union[_shard_service_pb2.ElementType, str]] = ...) -> None: ...

class OneHot(_message.Message):
    __slots__ = ("column", "class_count")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    column: str
    class_count: int
    def __init__(self, column: _Optional[str] = ..., class_count: _Optional[int] = ...) -> None: ...

class MixUp(_message.Message):
    __slots__ = ("column", "labels", "alpha", "class_count")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    column: str
    labels: str
    alpha: float
    class_count: int
    def __init__(self, column: _Optional[str] = ..., labels: _Optional[str] = ..., alpha: _Optional[float] = ..., class_count: _Optional[int] = ...) -> None: ...

class CutMix(_message.Message):
    __slots__ = ("column", "labels", "alpha", "class_count")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    column: str
    labels: str
    alpha: float
    class_count: int
    def __init__(self, column: _Optional[str] = ..., labels: _Optional[str] = ..., alpha: _Optional[float] = ..., class_count: _Optional[int] = ...) -> None: ...
