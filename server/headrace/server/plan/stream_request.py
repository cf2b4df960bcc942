"""Check the request of a stream, and fill in every default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar, cast

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from headrace.errors import (
    BadArgumentError,
    PositionPastEndError,
    TokenDatasetChangedError,
    TokenMalformedError,
    TokenSpecChangedError,
)
from headrace.order import (
    NUMBER_LIMIT,
    EndMode,
    EpochPlan,
    OrderSpec,
    Stages,
    Token,
    decode_token,
    spec_differences,
)
from headrace.server.layout.wire_columns import SAMPLE_IDS, WireColumn, choose_columns, refuse_large
from headrace.v1 import shard_service_pb2 as pb

# Messages count rows in int32.
_GLOBAL_BATCH_LIMIT = 1 << 31

_Options = TypeVar("_Options", bound=Message)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a call asks to read, whichever call it is.

    Attributes:
        dataset: The name of the dataset; empty if a stage of the order draws from several.
        fingerprint: The version that it names; empty for none.
        stages: Its stages, as they were sent.
        order_stages: The options of those of the order, by their type.
        batches: Which batches it asks for; None for samples by id.
        token: The token from which it resumes, if any.
        caller: The name of who asks; empty if this server knows no names.
    """

    dataset: str
    fingerprint: str
    stages: Sequence[AnyMessage]
    order_stages: Mapping[type[Message], Message]
    batches: pb.ReadBatchesRequest | None = None
    token: Token | None = None
    caller: str = ""

    @property
    def version(self) -> str:
        """Return the version to read: the token's, if it names none; empty for the current one."""
        return self.fingerprint or ("" if self.token is None else self.token.fingerprint)

    def options(self, kind: type[_Options]) -> _Options | None:
        """Return the options of a stage of the order; None if it does not ask for it."""
        return cast("_Options | None", self.order_stages.get(kind))


@dataclass(frozen=True, slots=True)
class WantedOrder:
    """The part of a request that concerns the order.

    Attributes:
        global_batch_size: The number of samples per batch over all ranks.
        order: The order's options, with defaults filled in.
    """

    global_batch_size: int
    order: OrderSpec


def token_of(request: pb.ReadBatchesRequest) -> Token | None:
    """Return the token that a request resumes from, if any.

    Raises:
        TokenMalformedError: It is invalid.
    """
    if request.WhichOneof("start") != "resume_token":
        return None
    token = decode_token(request.resume_token)
    _check_place(token)
    return token


def wanted_order(request: ReadRequest, *, has_units: bool = False) -> WantedOrder:
    """Return the part of a request that concerns the order.

    Args:
        request: The request.
        has_units: Whether its order has units of a global batch unless it says otherwise.

    Raises:
        BadArgumentError: A field is outside its range; ``metadata["field"]`` names it.
        TokenSpecChangedError: The token belongs to another order than the requested one.
    """
    token, batches = request.token, batches_of(request)
    global_batch_size = batches.global_batch_size
    if not global_batch_size and token is not None:
        global_batch_size = token.global_batch_size
    if not 1 <= global_batch_size < _GLOBAL_BATCH_LIMIT:
        raise BadArgumentError(
            f"global_batch_size is {global_batch_size}; it must be in [1, {_GLOBAL_BATCH_LIMIT})",
            field="global_batch_size",
        )
    unit = global_batch_size if has_units or batches.order.lanes > 1 else 1
    return WantedOrder(global_batch_size, _order(batches, token, unit))


def batches_of(request: ReadRequest) -> pb.ReadBatchesRequest:
    """Return which batches a request asks for; it must ask for some."""
    assert request.batches is not None
    return request.batches


def _check_place(token: Token) -> None:
    """Refuse positions from which counts could exceed 63 bits; no run ever gets there."""
    for field in ("epoch", "position", "step", "sample_count"):
        number = getattr(token, field)
        if number >= NUMBER_LIMIT:
            raise TokenMalformedError(
                f"the token contains an impossible value: {field} is {number}, must be in [0, "
                f"{NUMBER_LIMIT})"
            )


def _order(request: pb.ReadBatchesRequest, token: Token | None, default_unit: int) -> OrderSpec:
    if not request.HasField("order"):
        return replace(OrderSpec(), unit=default_unit) if token is None else token.spec
    wanted = _wanted_order(request.order, token, default_unit)
    if token is not None and wanted != token.spec:
        differences = "; ".join(spec_differences(wanted, token.spec))
        raise TokenSpecChangedError(
            f"the token is for another order ({differences}); request the token's order, or "
            "start over",
            differences=differences,
        )
    return wanted


def _wanted_order(order: pb.OrderSpec, token: Token | None, default_unit: int) -> OrderSpec:
    # Where it says nothing it must not make two orders out of one.
    unit = order.unit or (token.spec.unit if token else default_unit)
    given = {field.name: value for field, value in order.ListFields()}
    try:
        return OrderSpec(**{**given, "unit": unit})
    except BadArgumentError as error:
        field = f"order.{error.metadata.get('field', '')}"
        raise BadArgumentError(f"order: {error.message}", field=field) from error


MIN_CHUNK_BYTES = 64 * 1024
# A message of 3 MiB with its header stays below the 4 MiB that a standard client accepts.
MAX_CHUNK_BYTES = 3 * 1024 * 1024
# The sweet spot of gRPC's stack is 1 to 4 MiB (measured: tests/benchmarks/bench_server.py).
DEFAULT_CHUNK_BYTES = 2 * 1024 * 1024

# What one rank gets at once is bounded, so that a hostile request cannot take the server's memory
# before its first byte is known; the bound is arbitrary.
_RANK_BATCH_LIMIT = 1 << 24
# More lanes, or more distant batches, cost over ten times as much processor time a batch as the
# default (tests/benchmarks/bench_options.py): each batch would open other windows.
_LANES_LIMIT = 64
_STRIDE_LIMIT = 256
_EPOCH_LIMIT = 1 << 48
_COUNT_LIMIT = 1 << 62

_ENDS = {
    pb.END_MODE_UNSPECIFIED: EndMode.DROP_LAST,
    pb.END_MODE_DROP_LAST: EndMode.DROP_LAST,
    pb.END_MODE_UNEVEN: EndMode.UNEVEN,
    pb.END_MODE_PAD: EndMode.PAD,
}


@dataclass(frozen=True, slots=True)
class Readable:
    """The facts about a dataset against which a request is checked.

    Attributes:
        fingerprint: The fingerprint of the dataset, or the combined one of the mixture.
        sample_count: The number of samples in an epoch.
        columns: The columns that can be sent.
        refused: Why each other column cannot be sent.
        max_batch_bytes: The maximum payload of one batch.
        id_column: The column of sample ids.
        stages: Which stages samples pass before any request, as tokens name them.
        class_counts: The number of named classes by column, or None.
        has_units: Whether its order has units of a global batch unless a request says otherwise.
    """

    fingerprint: str
    sample_count: int
    columns: tuple[WireColumn, ...]
    refused: dict[str, str]
    max_batch_bytes: int
    id_column: WireColumn = SAMPLE_IDS
    stages: Stages = ()
    class_counts: Mapping[str, int] | None = None
    has_units: bool = False


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Everything that determines what a stream sends.

    Attributes:
        order: The order's options.
        stages: The stages of the order, as tokens name them.
        batch_stages: What tokens contain about the stages of batches, each as ``name@version``.
        global_batch_size: The number of samples per batch over all ranks.
        rank: In [0, `world_size`).
        world_size: The number of ranks.
        end: What becomes of an incomplete last batch.
        columns: The columns to gather, in order, including the server's own.
        epoch: The first epoch.
        position: The first position in it.
        step: The number of global batches of the run before the first one.
        consumed: The number of samples of the run before the first one.
        epoch_count: The number of epochs to stream; 0 means no end.
        max_chunk_bytes: The maximum payload of one message.
        max_group_bytes: The maximum size of a message with several batches; 0 for none.
        batch_stride: The stream gets one of every `batch_stride` batches.
        batch_offset: The index of that batch, in [0, `batch_stride`).
    """

    order: OrderSpec
    stages: Stages
    batch_stages: tuple[str, ...]
    global_batch_size: int
    rank: int
    world_size: int
    end: EndMode
    columns: tuple[WireColumn, ...]
    epoch: int
    position: int
    step: int
    consumed: int
    epoch_count: int
    max_chunk_bytes: int
    max_group_bytes: int
    batch_stride: int
    batch_offset: int


class StageTitles(Protocol):
    """The stages of a server, as they are checked here."""

    @property
    def order_words(self) -> Mapping[str, Words | None]:
        """Return how refusals name each stage of the order, by its name in tokens.

        None for those that compare their part of a token with a request themselves.
        """

    def titles(self, request: ReadRequest) -> tuple[str, ...]:
        """Return what tokens contain about the stages of a request.

        Raises:
            HeadraceError: A stage is unknown, or the token is for others.
        """


def stream_spec(request: ReadRequest, readable: Readable, stages: StageTitles) -> StreamSpec:
    """Check a request and fill in its defaults.

    Args:
        request: The request.
        readable: What it reads, behind the stages of the order that it asks for.
        stages: The stages of the server.

    Raises:
        BadArgumentError: A field is outside its range; ``metadata["field"]`` names it.
        ColumnNotFoundError: A requested column does not exist.
        UnsupportedColumnError: A requested column cannot be sent.
        PositionPastEndError: The start is past the end of an epoch.
        TokenDatasetChangedError: The token belongs to another version of the dataset.
        TokenSpecChangedError: The token belongs to another order than the requested one.
    """
    wanted = wanted_order(request, has_units=readable.has_units)
    token, batches = request.token, batches_of(request)
    if token is not None:
        check_version(request.dataset, token.fingerprint, readable)
        _check_stages(token, readable.stages, stages.order_words)
    columns = choose_columns(batches.columns, readable.columns, readable.refused)
    if batches.with_ids:
        columns += (readable.id_column,)
    epoch, position = _start(request, readable)
    spec = StreamSpec(
        order=wanted.order,
        stages=readable.stages,
        batch_stages=_batch_stages(request, stages),
        global_batch_size=wanted.global_batch_size,
        rank=batches.rank,
        world_size=batches.world_size,
        end=_end(batches.end),
        columns=columns,
        epoch=epoch,
        position=position,
        step=token.step if token else 0,
        consumed=token.sample_count if token else 0,
        epoch_count=batches.epoch_count,
        max_chunk_bytes=batches.max_chunk_bytes or DEFAULT_CHUNK_BYTES,
        max_group_bytes=batches.max_group_bytes,
        batch_stride=batches.batch_stride or 1,
        batch_offset=batches.batch_offset,
    )
    _check_ranges(spec)
    _check_batches(spec, readable)
    return spec


def _batch_stages(request: ReadRequest, stages: StageTitles) -> tuple[str, ...]:
    token = request.token
    has_none = not request.stages and (token is None or not token.stage("transforms"))
    return () if has_none else stages.titles(request)


class Words(NamedTuple):
    """How the refusal of a token names one of its stages.

    Attributes:
        some: What comes before the stage's text.
        none: What a run without the stage reads.
        advice: What to request.
        field: The field of the request.
    """

    some: str
    none: str
    advice: str
    field: str


def _check_stages(token: Token, wanted: Stages, order_words: Mapping[str, Words | None]) -> None:
    # What tokens say about stages of batches is compared with requests elsewhere.
    unknown = {name for name, _ in token.stages} - {*order_words, "transforms"}
    if unknown:
        raise TokenSpecChangedError(
            f"the token is for the stages {sorted(unknown)}, which this server does not have; "
            "continue with the headrace that made it, or start over",
            field="resume_token",
        )
    for name, words in order_words.items():
        if words is None:
            continue
        texts = token.stage(name), dict(wanted).get(name, "")
        if len(set(texts)) == 1:
            continue
        found, asked = (f"{words.some} {text}" if text else words.none for text in texts)
        raise TokenSpecChangedError(
            f"the token is for {found}, but the request is for {asked}; {words.advice}, or start "
            "over",
            field=words.field,
        )


def check_version(dataset: str, fingerprint: str, readable: Readable) -> None:
    """Refuse requests for another version of the dataset.

    Raises:
        TokenDatasetChangedError: The request is for another version.
    """
    if fingerprint != readable.fingerprint:
        raise TokenDatasetChangedError(
            f"a dataset with the fingerprint {fingerprint} is requested, but {dataset!r} has "
            f"{readable.fingerprint}; serve that version (NAME=URL#FINGERPRINT), or start over",
            token_fingerprint=fingerprint,
            dataset_fingerprint=readable.fingerprint,
        )


def check_chunk_bytes(value: int) -> None:
    """Refuse a message size that is too small to be useful or too large to be accepted.

    Raises:
        BadArgumentError: It is.
    """
    check_range("max_chunk_bytes", value, low=MIN_CHUNK_BYTES, high=MAX_CHUNK_BYTES + 1)


def check_payload(
    rows: int, columns: Sequence[WireColumn], readable: Readable, *, field: str
) -> None:
    """Refuse a batch that is certainly too large, before reading any of it.

    Raises:
        BadArgumentError: It is.
    """
    refuse_large(rows * _least_row_bytes(columns), readable.max_batch_bytes, field=field)


def start_of(request: ReadRequest) -> tuple[int, int]:
    """Return the epoch and the position that a request starts at.

    Raises:
        BadArgumentError: It does not say, or they are out of range.
    """
    token, batches = request.token, batches_of(request)
    if token is not None:
        epoch, position = token.epoch, token.position
        field = "resume_token"
    elif batches.HasField("epoch_start"):
        epoch, position = batches.epoch_start.epoch, batches.epoch_start.position
        field = "epoch_start"
    else:
        raise BadArgumentError(
            "the request does not say where to start; give epoch_start or resume_token",
            field="start",
        )
    check_range(f"{field}.epoch", epoch, low=0, high=_EPOCH_LIMIT)
    check_range(f"{field}.position", position, low=0, high=_COUNT_LIMIT)
    return epoch, position


def _start(request: ReadRequest, readable: Readable) -> tuple[int, int]:
    epoch, position = start_of(request)
    if position > readable.sample_count:
        raise PositionPastEndError(
            f"position {position} is past the end; an epoch has {readable.sample_count} samples",
            position=position,
            sample_count=readable.sample_count,
        )
    return epoch, position


def _end(value: pb.EndMode) -> EndMode:
    if value not in _ENDS:
        raise BadArgumentError(f"end is {value}, which is not an EndMode", field="end")
    return _ENDS[value]


def _check_ranges(spec: StreamSpec) -> None:
    check_range("world_size", spec.world_size, low=1, high=1 << 31)
    check_range("rank", spec.rank, low=0, high=spec.world_size)
    check_range("epoch_count", spec.epoch_count, low=0, high=_EPOCH_LIMIT)
    check_chunk_bytes(spec.max_chunk_bytes)
    check_range("max_group_bytes", spec.max_group_bytes, low=0, high=MAX_CHUNK_BYTES + 1)
    check_range("order.lanes", spec.order.lanes, low=1, high=_LANES_LIMIT + 1)
    check_range("batch_stride", spec.batch_stride, low=1, high=_STRIDE_LIMIT + 1)
    check_range("batch_offset", spec.batch_offset, low=0, high=spec.batch_stride)
    if spec.global_batch_size < spec.world_size:
        raise BadArgumentError(
            f"global_batch_size is {spec.global_batch_size}; {spec.world_size} ranks need at least "
            f"{spec.world_size} samples",
            field="global_batch_size",
        )


def _check_batches(spec: StreamSpec, readable: Readable) -> None:
    rows = greatest_rows(spec, readable)
    if rows > _RANK_BATCH_LIMIT:
        raise BadArgumentError(
            f"global_batch_size is {spec.global_batch_size}, which gives a rank {rows} samples per "
            f"batch; it must be at most {_RANK_BATCH_LIMIT}",
            field="global_batch_size",
        )
    check_payload(rows, spec.columns, readable, field="global_batch_size")
    whole = EpochPlan(readable.sample_count, 0, spec.global_batch_size, spec.end)
    if whole.batch_count == 0 and readable.sample_count:
        # Such a stream would be one end of an epoch after the other, as fast as they can be sent,
        # or nothing at all, without a word.
        raise BadArgumentError(
            f"an epoch of {readable.sample_count} samples has no batch of "
            f"{spec.global_batch_size} for world_size={spec.world_size}, and end='drop_last' "
            "drops incomplete batches; use a smaller batch_size, or end='uneven' or 'pad'",
            field="global_batch_size",
        )


def greatest_rows(spec: StreamSpec, readable: Readable) -> int:
    """Return the maximum number of rows of a stream's batches."""
    count = spec.global_batch_size
    if spec.end is not EndMode.PAD:
        count = min(count, readable.sample_count)
    return -(-count // spec.world_size)


def _least_row_bytes(columns: Sequence[WireColumn]) -> int:
    return sum(column.item_bytes if column.is_tensor else 8 for column in columns)


def check_range(field: str, value: int, *, low: int, high: int) -> None:
    """Refuse a number outside ``[low, high)``.

    Raises:
        BadArgumentError: It is.
    """
    if not low <= value < high:
        raise BadArgumentError(f"{field} is {value}; it must be in [{low}, {high})", field=field)
