"""Make requests whose stages of the order are named by what they change."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage

from headrace.v1 import buckets_pb2, dealing_pb2, filters_pb2, mixtures_pb2, skips_pb2
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed

_Request = TypeVar(
    "_Request",
    pb.ReadBatchesRequest,
    pb.GetBatchRequest,
    pb.GetSamplesRequest,
    pb.GetDatasetRequest,
)


def asking(kind: type[_Request], /, **fields: Any) -> _Request:
    """Make a request; the fields of `order_stages` become stages, before those that are given."""
    stages = order_stages(**{name: fields.pop(name) for name in _NAMES.intersection(fields)})
    stages += fields.pop("stages", ())
    return kind(**fields, stages=stages)


def order_stages(
    *,
    where: str = "",
    skips: pb.SkipList | None = None,
    token_skips: pb.SkipList | None = None,
    allow_new_skips: bool = False,
    buckets: int = 0,
    deal: dealing_pb2.Deal | None = None,
    mixture: mixtures_pb2.Mixture | None = None,
) -> list[AnyMessage]:
    """Return the stages of the order that are asked for."""
    found = []
    if mixture is not None:
        found.append(packed(mixture))
    if where:
        found.append(packed(filters_pb2.Where(expression=where)))
    if skips is not None:
        skip = skips_pb2.Skip(list=skips, allow_new_list=allow_new_skips, token_list=token_skips)
        found.append(packed(skip))
    if buckets:
        found.append(packed(buckets_pb2.LengthBuckets(unit_count=buckets)))
    if deal is not None:
        found.append(packed(deal))
    return found


_NAMES = {"where", "skips", "token_skips", "allow_new_skips", "buckets", "deal", "mixture"}
