"""The S3 server that the tests use is a real one where it matters to us."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from support.s3 import S3


def test_conditional_put_has_one_winner(s3: S3) -> None:
    """A second PUT of the same key with If-None-Match is refused with 412."""
    client = s3.weed.client()
    client.put_object(Bucket=s3.weed.bucket, Key=s3.key("once"), Body=b"first", IfNoneMatch="*")

    with pytest.raises(ClientError) as caught:
        client.put_object(
            Bucket=s3.weed.bucket, Key=s3.key("once"), Body=b"second", IfNoneMatch="*"
        )
    client.close()

    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
