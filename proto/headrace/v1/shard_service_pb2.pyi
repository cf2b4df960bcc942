from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ColumnKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLUMN_KIND_UNSPECIFIED: _ClassVar[ColumnKind]
    COLUMN_KIND_TENSOR: _ClassVar[ColumnKind]
    COLUMN_KIND_BYTES: _ClassVar[ColumnKind]
    COLUMN_KIND_STRING: _ClassVar[ColumnKind]
    COLUMN_KIND_RAGGED: _ClassVar[ColumnKind]

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELEMENT_TYPE_UNSPECIFIED: _ClassVar[ElementType]
    ELEMENT_TYPE_BOOL: _ClassVar[ElementType]
    ELEMENT_TYPE_INT8: _ClassVar[ElementType]
    ELEMENT_TYPE_INT16: _ClassVar[ElementType]
    ELEMENT_TYPE_INT32: _ClassVar[ElementType]
    ELEMENT_TYPE_INT64: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT8: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT16: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT32: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT64: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT16: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT32: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT64: _ClassVar[ElementType]
    ELEMENT_TYPE_BFLOAT16: _ClassVar[ElementType]

class EndMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_MODE_UNSPECIFIED: _ClassVar[EndMode]
    END_MODE_DROP_LAST: _ClassVar[EndMode]
    END_MODE_UNEVEN: _ClassVar[EndMode]
    END_MODE_PAD: _ClassVar[EndMode]
COLUMN_KIND_UNSPECIFIED: ColumnKind
COLUMN_KIND_TENSOR: ColumnKind
COLUMN_KIND_BYTES: ColumnKind
COLUMN_KIND_STRING: ColumnKind
COLUMN_KIND_RAGGED: ColumnKind
ELEMENT_TYPE_UNSPECIFIED: ElementType
ELEMENT_TYPE_BOOL: ElementType
ELEMENT_TYPE_INT8: ElementType
ELEMENT_TYPE_INT16: ElementType
ELEMENT_TYPE_INT32: ElementType
ELEMENT_TYPE_INT64: ElementType
ELEMENT_TYPE_UINT8: ElementType
ELEMENT_TYPE_UINT16: ElementType
ELEMENT_TYPE_UINT32: ElementType
ELEMENT_TYPE_UINT64: ElementType
ELEMENT_TYPE_FLOAT16: ElementType
ELEMENT_TYPE_FLOAT32: ElementType
ELEMENT_TYPE_FLOAT64: ElementType
ELEMENT_TYPE_BFLOAT16: ElementType
END_MODE_UNSPECIFIED: EndMode
END_MODE_DROP_LAST: EndMode
END_MODE_UNEVEN: EndMode
END_MODE_PAD: EndMode

class ListDatasetsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets", "next_page_token")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    next_page_token: str
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("name", "fingerprint", "stages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    stages: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class GetDatasetResponse(_message.Message):
    __slots__ = ("dataset", "classes")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    classes: _containers.RepeatedCompositeFieldContainer[ColumnClasses]
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., classes: _Optional[_Iterable[_Union[ColumnClasses, _Mapping]]] = ...) -> None: ...

class ColumnClasses(_message.Message):
    __slots__ = ("column", "names", "class_count")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    column: str
    names: _containers.RepeatedScalarFieldContainer[str]
    class_count: int
    def __init__(self, column: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., class_count: _Optional[int] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("name", "fingerprint", "sample_count", "shard_count", "raw_bytes", "stored_bytes", "columns", "skip_lists", "stages", "document_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SKIP_LISTS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    sample_count: int
    shard_count: int
    raw_bytes: int
    stored_bytes: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    skip_lists: _containers.RepeatedCompositeFieldContainer[SkipList]
    stages: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    document_count: int
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., sample_count: _Optional[int] = ..., shard_count: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., skip_lists: _Optional[_Iterable[_Union[SkipList, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ..., document_count: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "kind", "element_type", "item_shape", "nullable", "logical_type", "stored_column")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    ITEM_SHAPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    STORED_COLUMN_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: ColumnKind
    element_type: ElementType
    item_shape: _containers.RepeatedScalarFieldContainer[int]
    nullable: bool
    logical_type: str
    stored_column: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[ColumnKind, str]] = ..., element_type: _Optional[_Union[ElementType, str]] = ..., item_shape: _Optional[_Iterable[int]] = ..., nullable: bool = ..., logical_type: _Optional[str] = ..., stored_column: _Optional[str] = ...) -> None: ...

class OrderSpec(_message.Message):
    __slots__ = ("version", "seed", "shuffle", "run_bytes", "shuffle_bytes", "lanes", "unit", "shuffle_samples", "ramp")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    RUN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RAMP_FIELD_NUMBER: _ClassVar[int]
    version: int
    seed: int
    shuffle: bool
    run_bytes: int
    shuffle_bytes: int
    lanes: int
    unit: int
    shuffle_samples: int
    ramp: bool
    def __init__(self, version: _Optional[int] = ..., seed: _Optional[int] = ..., shuffle: bool = ..., run_bytes: _Optional[int] = ..., shuffle_bytes: _Optional[int] = ..., lanes: _Optional[int] = ..., unit: _Optional[int] = ..., shuffle_samples: _Optional[int] = ..., ramp: bool = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "position")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    position: int
    def __init__(self, epoch: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class SkipList(_message.Message):
    __slots__ = ("digest", "sample_ids", "sample_count")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    sample_ids: _containers.RepeatedScalarFieldContainer[int]
    sample_count: int
    def __init__(self, digest: _Optional[str] = ..., sample_ids: _Optional[_Iterable[int]] = ..., sample_count: _Optional[int] = ...) -> None: ...

class ReadBatchesRequest(_message.Message):
    __slots__ = ("dataset", "order", "global_batch_size", "rank", "world_size", "end", "columns", "with_ids", "epoch_start", "resume_token", "epoch_count", "max_chunk_bytes", "batch_stride", "batch_offset", "fingerprint", "stages", "max_group_bytes")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    WITH_IDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_START_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BATCH_STRIDE_FIELD_NUMBER: _ClassVar[int]
    BATCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_GROUP_BYTES_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    order: OrderSpec
    global_batch_size: int
    rank: int
    world_size: int
    end: EndMode
    columns: _containers.RepeatedScalarFieldContainer[str]
    with_ids: bool
    epoch_start: EpochStart
    resume_token: bytes
    epoch_count: int
    max_chunk_bytes: int
    batch_stride: int
    batch_offset: int
    fingerprint: str
    stages: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    max_group_bytes: int
    def __init__(self, dataset: _Optional[str] = ..., order: _Optional[_Union[OrderSpec, _Mapping]] = ..., global_batch_size: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., end: _Optional[_Union[EndMode, str]] = ..., columns: _Optional[_Iterable[str]] = ..., with_ids: bool = ..., epoch_start: _Optional[_Union[EpochStart, _Mapping]] = ..., resume_token: _Optional[bytes] = ..., epoch_count: _Optional[int] = ..., max_chunk_bytes: _Optional[int] = ..., batch_stride: _Optional[int] = ..., batch_offset: _Optional[int] = ..., fingerprint: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ..., max_group_bytes: _Optional[int] = ...) -> None: ...

class ReadBatchesResponse(_message.Message):
    __slots__ = ("start", "batch", "chunk", "epoch_end", "heartbeat", "messages", "payload")
    START_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_END_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    start: StreamStart
    batch: BatchHeader
    chunk: Chunk
    epoch_end: EpochEnd
    heartbeat: Heartbeat
    messages: _containers.RepeatedCompositeFieldContainer[ReadBatchesResponse]
    payload: bytes
    def __init__(self, start: _Optional[_Union[StreamStart, _Mapping]] = ..., batch: _Optional[_Union[BatchHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., epoch_end: _Optional[_Union[EpochEnd, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[ReadBatchesResponse, _Mapping]]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class StreamStart(_message.Message):
    __slots__ = ("dataset", "columns", "order", "global_batch_size", "epoch", "position", "datasets", "epoch_sample_count", "stages", "cache_shortage")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    CACHE_SHORTAGE_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    order: OrderSpec
    global_batch_size: int
    epoch: int
    position: int
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    epoch_sample_count: int
    stages: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    cache_shortage: CacheShortage
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., order: _Optional[_Union[OrderSpec, _Mapping]] = ..., global_batch_size: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., epoch_sample_count: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ..., cache_shortage: _Optional[_Union[CacheShortage, _Mapping]] = ...) -> None: ...

class CacheShortage(_message.Message):
    __slots__ = ("job_bytes", "part_bytes")
    JOB_BYTES_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    job_bytes: int
    part_bytes: int
    def __init__(self, job_bytes: _Optional[int] = ..., part_bytes: _Optional[int] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("epoch", "step", "position", "sample_count", "global_sample_count", "pad_count", "buffer_bytes", "payload_bytes", "payload_xxh3", "resume_token", "substitute_count", "head_padding", "damaged_sample_ids", "damaged_dataset_indices")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_XXH3_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SUBSTITUTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEAD_PADDING_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_DATASET_INDICES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    position: int
    sample_count: int
    global_sample_count: int
    pad_count: int
    buffer_bytes: _containers.RepeatedScalarFieldContainer[int]
    payload_bytes: int
    payload_xxh3: int
    resume_token: bytes
    substitute_count: int
    head_padding: bytes
    damaged_sample_ids: _containers.RepeatedScalarFieldContainer[int]
    damaged_dataset_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., position: _Optional[int] = ..., sample_count: _Optional[int] = ..., global_sample_count: _Optional[int] = ..., pad_count: _Optional[int] = ..., buffer_bytes: _Optional[_Iterable[int]] = ..., payload_bytes: _Optional[int] = ..., payload_xxh3: _Optional[int] = ..., resume_token: _Optional[bytes] = ..., substitute_count: _Optional[int] = ..., head_padding: _Optional[bytes] = ..., damaged_sample_ids: _Optional[_Iterable[int]] = ..., damaged_dataset_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("payload_offset",)
    PAYLOAD_OFFSET_FIELD_NUMBER: _ClassVar[int]
    payload_offset: int
    def __init__(self, payload_offset: _Optional[int] = ...) -> None: ...

class EpochEnd(_message.Message):
    __slots__ = ("epoch", "batch_count", "sample_count", "dropped_sample_count", "resume_token", "dataset_sample_counts", "substitute_count")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SAMPLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DATASET_SAMPLE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUBSTITUTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    batch_count: int
    sample_count: int
    dropped_sample_count: int
    resume_token: bytes
    dataset_sample_counts: _containers.RepeatedScalarFieldContainer[int]
    substitute_count: int
    def __init__(self, epoch: _Optional[int] = ..., batch_count: _Optional[int] = ..., sample_count: _Optional[int] = ..., dropped_sample_count: _Optional[int] = ..., resume_token: _Optional[bytes] = ..., dataset_sample_counts: _Optional[_Iterable[int]] = ..., substitute_count: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("waiting_ms", "store_ms", "decode_ms", "server_ms")
    WAITING_MS_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    SERVER_MS_FIELD_NUMBER: _ClassVar[int]
    waiting_ms: int
    store_ms: int
    decode_ms: int
    server_ms: int
    def __init__(self, waiting_ms: _Optional[int] = ..., store_ms: _Optional[int] = ..., decode_ms: _Optional[int] = ..., server_ms: _Optional[int] = ...) -> None: ...

class AttachTransportRequest(_message.Message):
    __slots__ = ("read", "transport")
    READ_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    read: ReadBatchesRequest
    transport: _any_pb2.Any
    def __init__(self, read: _Optional[_Union[ReadBatchesRequest, _Mapping]] = ..., transport: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...

class AttachTransportResponse(_message.Message):
    __slots__ = ("start", "batch", "chunk", "epoch_end", "heartbeat", "offer", "payload")
    START_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_END_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    start: StreamStart
    batch: BatchHeader
    chunk: Chunk
    epoch_end: EpochEnd
    heartbeat: Heartbeat
    offer: _any_pb2.Any
    payload: bytes
    def __init__(self, start: _Optional[_Union[StreamStart, _Mapping]] = ..., batch: _Optional[_Union[BatchHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., epoch_end: _Optional[_Union[EpochEnd, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., offer: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class GetBatchRequest(_message.Message):
    __slots__ = ("dataset", "order", "global_batch_size", "rank", "world_size", "end", "columns", "with_ids", "epoch_start", "resume_token", "max_chunk_bytes", "fingerprint", "stages")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    WITH_IDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_START_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    order: OrderSpec
    global_batch_size: int
    rank: int
    world_size: int
    end: EndMode
    columns: _containers.RepeatedScalarFieldContainer[str]
    with_ids: bool
    epoch_start: EpochStart
    resume_token: bytes
    max_chunk_bytes: int
    fingerprint: str
    stages: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, dataset: _Optional[str] = ..., order: _Optional[_Union[OrderSpec, _Mapping]] = ..., global_batch_size: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., end: _Optional[_Union[EndMode, str]] = ..., columns: _Optional[_Iterable[str]] = ..., with_ids: bool = ..., epoch_start: _Optional[_Union[EpochStart, _Mapping]] = ..., resume_token: _Optional[bytes] = ..., max_chunk_bytes: _Optional[int] = ..., fingerprint: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class GetBatchResponse(_message.Message):
    __slots__ = ("start", "batch", "chunk", "heartbeat", "payload")
    START_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    start: StreamStart
    batch: BatchHeader
    chunk: Chunk
    heartbeat: Heartbeat
    payload: bytes
    def __init__(self, start: _Optional[_Union[StreamStart, _Mapping]] = ..., batch: _Optional[_Union[BatchHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class GetSamplesRequest(_message.Message):
    __slots__ = ("dataset", "fingerprint", "sample_ids", "columns", "with_ids", "max_chunk_bytes", "dataset_indices", "stages")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    WITH_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATASET_INDICES_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    fingerprint: str
    sample_ids: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedScalarFieldContainer[str]
    with_ids: bool
    max_chunk_bytes: int
    dataset_indices: _containers.RepeatedScalarFieldContainer[int]
    stages: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, dataset: _Optional[str] = ..., fingerprint: _Optional[str] = ..., sample_ids: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[str]] = ..., with_ids: bool = ..., max_chunk_bytes: _Optional[int] = ..., dataset_indices: _Optional[_Iterable[int]] = ..., stages: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class GetSamplesResponse(_message.Message):
    __slots__ = ("start", "batch", "chunk", "heartbeat", "payload")
    START_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    start: StreamStart
    batch: BatchHeader
    chunk: Chunk
    heartbeat: Heartbeat
    payload: bytes
    def __init__(self, start: _Optional[_Union[StreamStart, _Mapping]] = ..., batch: _Optional[_Union[BatchHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ExplainBatchRequest(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: GetBatchRequest
    def __init__(self, batch: _Optional[_Union[GetBatchRequest, _Mapping]] = ...) -> None: ...

class ExplainBatchResponse(_message.Message):
    __slots__ = ("start", "header", "sample_ids", "shards", "dataset_indices")
    START_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    DATASET_INDICES_FIELD_NUMBER: _ClassVar[int]
    start: StreamStart
    header: BatchHeader
    sample_ids: _containers.RepeatedScalarFieldContainer[int]
    shards: _containers.RepeatedCompositeFieldContainer[ExplainedShard]
    dataset_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start: _Optional[_Union[StreamStart, _Mapping]] = ..., header: _Optional[_Union[BatchHeader, _Mapping]] = ..., sample_ids: _Optional[_Iterable[int]] = ..., shards: _Optional[_Iterable[_Union[ExplainedShard, _Mapping]]] = ..., dataset_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class ExplainedShard(_message.Message):
    __slots__ = ("shard", "name", "blocks", "dataset_index")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DATASET_INDEX_FIELD_NUMBER: _ClassVar[int]
    shard: int
    name: str
    blocks: _containers.RepeatedCompositeFieldContainer[ExplainedBlock]
    dataset_index: int
    def __init__(self, shard: _Optional[int] = ..., name: _Optional[str] = ..., blocks: _Optional[_Iterable[_Union[ExplainedBlock, _Mapping]]] = ..., dataset_index: _Optional[int] = ...) -> None: ...

class ExplainedBlock(_message.Message):
    __slots__ = ("block", "offset", "stored_bytes", "is_cached", "rows", "sample_ids")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_CACHED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    block: int
    offset: int
    stored_bytes: int
    is_cached: bool
    rows: _containers.RepeatedScalarFieldContainer[int]
    sample_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, block: _Optional[int] = ..., offset: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., is_cached: bool = ..., rows: _Optional[_Iterable[int]] = ..., sample_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class FindSamplesRequest(_message.Message):
    __slots__ = ("batch", "sample_ids", "dataset_indices")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    DATASET_INDICES_FIELD_NUMBER: _ClassVar[int]
    batch: GetBatchRequest
    sample_ids: _containers.RepeatedScalarFieldContainer[int]
    dataset_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, batch: _Optional[_Union[GetBatchRequest, _Mapping]] = ..., sample_ids: _Optional[_Iterable[int]] = ..., dataset_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class FindSamplesResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[FoundRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[FoundRow, _Mapping]]] = ...) -> None: ...

class FoundRow(_message.Message):
    __slots__ = ("sample", "epoch", "position", "step", "rank", "row")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    sample: int
    epoch: int
    position: int
    step: int
    rank: int
    row: int
    def __init__(self, sample: _Optional[int] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...
