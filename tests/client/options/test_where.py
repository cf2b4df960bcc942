"""Tests of what a server tells a client about its filter."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any

from headrace.client.options.where import kept_in
from headrace.errors import StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.filters_pb2 import Filter
from headrace.v1.stages import packed


@pytest.mark.parametrize(
    "told",
    [
        packed(Filter(digest="ab" * 16)),
        packed(Filter(digest="ab" * 16, sample_count=11)),
        packed(Filter(digest="none", sample_count=3)),
        Any(type_url="type.googleapis.com/headrace.v1.Filter", value=b"\xff"),
    ],
)
def test_what_no_filter_can_keep_is_refused(told: Any) -> None:
    """Neither no sample, nor more than there are, nor without a digest, nor damaged bytes."""
    with pytest.raises(StreamCorruptError, match="filter"):
        kept_in(pb.Dataset(sample_count=10, stages=[told]))
