"""Write an object of unknown size with bounded memory.

Contract:

1. Success: `close` publishes the object, with a single PUT if it is smaller than a part.
2. Failure or cancellation: `abort` discards the parts that were sent; nothing becomes visible.
3. Crash: the parts stay in the store, invisible, until `headrace gc` discards them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.storage.store.s3.client import S3Requests

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

PART_BYTES = 8 << 20
"""S3 allows 10,000 parts, so an object may have 80 GB. This is also boto3's part size."""


class S3Writer:
    """Writes one object; holds at most one part and one chunk. Not thread-safe."""

    def __init__(self, requests: S3Requests, *, bucket: str, key: str, place: str) -> None:
        self._requests = requests
        self._bucket = bucket
        self._key = key
        self._place = place
        self._buffer = bytearray()
        self._upload: str | None = None
        self._parts: list[CompletedPartTypeDef] = []

    def write(self, chunk: bytes) -> None:
        self._buffer += chunk
        while len(self._buffer) >= PART_BYTES:
            part = bytes(memoryview(self._buffer)[:PART_BYTES])
            del self._buffer[:PART_BYTES]
            self._send_part(part)

    def close(self) -> None:
        content = bytes(self._buffer)
        self._buffer.clear()
        if self._upload is None:
            digest = content_md5(content)
            self._requests.send(
                lambda client: client.put_object(
                    Bucket=self._bucket, Key=self._key, Body=content, ContentMD5=digest
                ),
                place=self._place,
            )
            return
        if content:
            self._send_part(content)
        self._complete(self._upload)

    def abort(self) -> None:
        upload, self._upload = self._upload, None
        self._buffer.clear()
        if upload is None:
            return
        # Parts that cannot be discarded are discarded by `headrace gc`; the caller needs the
        # original error.
        with contextlib.suppress(HeadraceError):
            self._requests.send(
                lambda client: client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._key, UploadId=upload
                ),
                place=self._place,
            )

    def _send_part(self, content: bytes) -> None:
        upload = self._upload or self._begin()
        number = len(self._parts) + 1
        digest = content_md5(content)
        answer = self._requests.send(
            lambda client: client.upload_part(
                Bucket=self._bucket,
                Key=self._key,
                UploadId=upload,
                PartNumber=number,
                Body=content,
                ContentMD5=digest,
            ),
            place=self._place,
        )
        self._parts.append({"ETag": answer["ETag"], "PartNumber": number})

    def _begin(self) -> str:
        answer = self._requests.send(
            lambda client: client.create_multipart_upload(Bucket=self._bucket, Key=self._key),
            place=self._place,
        )
        self._upload = answer["UploadId"]
        return self._upload

    def _complete(self, upload: str) -> None:
        repeated = False

        def complete() -> None:
            nonlocal repeated
            first, repeated = not repeated, True
            try:
                self._requests.client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=self._key,
                    UploadId=upload,
                    MultipartUpload={"Parts": self._parts},
                )
            except self._requests.client.exceptions.NoSuchUpload:
                # An earlier attempt had succeeded, and only its answer was lost.
                if first:
                    raise
                self._requests.client.head_object(Bucket=self._bucket, Key=self._key)

        self._requests.send(lambda _: complete(), place=self._place)
        self._upload = None


def content_md5(content: bytes) -> str:
    """Return the value of Content-MD5, by which a service can refuse a damaged body."""
    digest = hashlib.md5(content, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()
