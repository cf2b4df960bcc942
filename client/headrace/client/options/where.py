"""A filter of rows: an epoch has only the samples that an expression keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from headrace.client.options.arguments import where_of
from headrace.client.options.stage import OrderStage
from headrace.errors import StreamCorruptError
from headrace.v1 import filters_pb2
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed

_DIGEST = re.compile("[0-9a-f]{32}")
_FILTER = filters_pb2.Filter.DESCRIPTOR.full_name


@dataclass(frozen=True, slots=True)
class Where(OrderStage):
    """Keep the samples of an expression.

    Attributes:
        expression: The expression, as for `Selection`.
    """

    expression: str

    def to_message(self) -> filters_pb2.Where:
        """Write the stage down for the wire."""
        return filters_pb2.Where(expression=self.expression)


def where_stages(where: str | None) -> tuple[Where, ...]:
    """Return the stages that an argument means: none for None or an empty string."""
    return (Where(where_of(where)),) if where else ()


def kept_in(dataset: pb.Dataset, *, target: str = "a server") -> filters_pb2.Filter:
    """Return what a filter keeps of a described dataset; without one, all its samples.

    Args:
        dataset: The dataset, as a server describes it.
        target: The server.

    Raises:
        StreamCorruptError: No filter can keep that.
    """
    kept = filters_pb2.Filter()
    found = [each for each in dataset.stages if each.TypeName() == _FILTER]
    if not found:
        return filters_pb2.Filter(sample_count=dataset.sample_count)
    try:
        found[0].Unpack(kept)
    except DecodeError as error:
        raise StreamCorruptError(
            f"{target}: what a filter keeps cannot be read: {error}", target=target
        ) from error
    if not (1 <= kept.sample_count <= dataset.sample_count and _DIGEST.fullmatch(kept.digest)):
        raise StreamCorruptError(
            f"{target} says that a filter keeps {kept.sample_count} of the {dataset.sample_count} "
            f"samples of {dataset.name[:100]!r}, with the digest {kept.digest[:100]!r}; expected "
            "at least 1, and 32 hexadecimal digits",
            target=target,
        )
    return kept


def dataset_request(name: str, fingerprint: str, where: str | None) -> pb.GetDatasetRequest:
    """Return the request for the description of one dataset, and of what a filter keeps."""
    stages = [packed(stage.to_message()) for stage in where_stages(where)]
    return pb.GetDatasetRequest(name=name, fingerprint=fingerprint, stages=stages)
