"""What a request wants of the order: its token, its global batch size, the order's options."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import BadArgumentError, TokenMalformedError, TokenSpecChangedError
from headrace.order import NUMBER_LIMIT, OrderSpec, Token, decode_token, spec_differences
from headrace.v1 import shard_service_pb2 as pb

# The wire counts rows in int32.
_GLOBAL_BATCH_LIMIT = 1 << 31

BatchesRequest = pb.ReadBatchesRequest | pb.GetBatchRequest


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants of the order.

    Attributes:
        token: Where it goes on, if it does.
        global_batch_size: Samples of one batch over all ranks.
        order: The order's options, every default filled in.
    """

    token: Token | None
    global_batch_size: int
    order: OrderSpec


def wanted_order(request: BatchesRequest) -> Wanted:
    """Return what a request wants of the order.

    Raises:
        BadArgumentError: A field is outside its range; ``metadata["field"]`` names it.
        TokenMalformedError: The token is none.
        TokenSpecChangedError: The token is of another order than the one wanted.
    """
    token = None
    if request.WhichOneof("start") == "resume_token":
        token = decode_token(request.resume_token)
        _check_place(token)
    global_batch_size = request.global_batch_size
    if not global_batch_size and token is not None:
        global_batch_size = token.global_batch_size
    if not 1 <= global_batch_size < _GLOBAL_BATCH_LIMIT:
        raise BadArgumentError(
            f"global_batch_size is {global_batch_size}; it must be in [1, {_GLOBAL_BATCH_LIMIT})",
            field="global_batch_size",
        )
    return Wanted(token, global_batch_size, _order(request, token, global_batch_size))


def _check_place(token: Token) -> None:
    """Refuse a place from which a run could count out of 63 bits; no run ever gets there."""
    for field in ("epoch", "position", "step", "sample_count"):
        number = getattr(token, field)
        if number >= NUMBER_LIMIT:
            raise TokenMalformedError(
                f"the token holds what cannot be: {field} is {number}, must be in "
                f"[0, {NUMBER_LIMIT})"
            )


def _order(request: BatchesRequest, token: Token | None, global_batch_size: int) -> OrderSpec:
    if not request.HasField("order"):
        if token is None:
            return OrderSpec()
        return token.spec
    wanted = _wanted_order(request.order, token, global_batch_size)
    if token is not None and wanted != token.spec:
        differences = "; ".join(spec_differences(wanted, token.spec))
        raise TokenSpecChangedError(
            f"the token is of another order ({differences}); ask for the token's, or start anew",
            differences=differences,
        )
    return wanted


def _wanted_order(order: pb.OrderSpec, token: Token | None, global_batch_size: int) -> OrderSpec:
    lanes = order.lanes or 1
    unit = order.unit
    if not unit:
        # With one lane it says nothing, and must not make two orders out of one.
        unit = token.spec.unit if token else global_batch_size if lanes > 1 else 1
    defaults = OrderSpec()
    try:
        return OrderSpec(
            version=order.version or defaults.version,
            seed=order.seed,
            shuffle=order.shuffle if order.HasField("shuffle") else defaults.shuffle,
            window=order.window if order.HasField("window") else defaults.window,
            window_bytes=(
                order.window_bytes if order.HasField("window_bytes") else defaults.window_bytes
            ),
            lanes=lanes,
            unit=unit,
        )
    except BadArgumentError as error:
        field = f"order.{error.metadata.get('field', '')}"
        raise BadArgumentError(f"order: {error.message}", field=field) from error
