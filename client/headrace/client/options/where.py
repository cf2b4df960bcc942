"""A filter of rows: an epoch has only the samples that an expression keeps."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.options.arguments import where_of
from headrace.client.options.stage import OrderStage
from headrace.v1 import filters_pb2
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed


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


def dataset_request(name: str, fingerprint: str, where: str | None) -> pb.GetDatasetRequest:
    """Return the request for the description of one dataset, and of what a filter keeps."""
    stages = [packed(stage.to_message()) for stage in where_stages(where)]
    return pb.GetDatasetRequest(name=name, fingerprint=fingerprint, stages=stages)
