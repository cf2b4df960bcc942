"""A bucket, or a prefix in one, as a store: S3 and what speaks its protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.errors import BadArgumentError, ObjectNotFoundError
from headrace.storage.store.names import check_name
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.s3_client import S3Requests
from headrace.storage.store.s3_writer import S3Writer, content_md5
from headrace.storage.store.safe_url import safe_url
from headrace.storage.store.store import ObjectEntry, Unfinished, Version

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        ListMultipartUploadsOutputTypeDef,
        ListObjectsV2OutputTypeDef,
        ObjectTypeDef,
    )


class S3Store:
    """Objects under a prefix of a bucket."""

    def __init__(self, url: str, *, options: StoreOptions) -> None:
        parts = urlsplit(url)
        if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise BadArgumentError(
                f"{safe_url(url)!r} is no s3://bucket/prefix; credentials are no part of it",
                field="url",
            )
        self._bucket = parts.netloc
        self._prefix = parts.path.strip("/")
        self._requests = S3Requests(options, place=self.url)

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        return self._requests.get(
            self._bucket, self._key(name), offset=offset, length=length, place=self._place(name)
        ).content

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        key = self._key(name)

        def get(client: S3Client) -> tuple[bytes, Version]:
            answer = client.get_object(Bucket=self._bucket, Key=key)
            with contextlib.closing(answer["Body"]) as body:
                return body.read(), Version(answer["ETag"])

        return self._requests.send(get, place=self._place(name))

    def write(self, name: str, content: bytes) -> None:
        key, digest = self._key(name), content_md5(content)
        self._requests.send(
            lambda client: client.put_object(
                Bucket=self._bucket, Key=key, Body=content, ContentMD5=digest
            ),
            place=self._place(name),
        )

    def write_if_absent(self, name: str, content: bytes) -> None:
        key, digest = self._key(name), content_md5(content)
        self._requests.send(
            lambda client: client.put_object(
                Bucket=self._bucket, Key=key, Body=content, ContentMD5=digest, IfNoneMatch="*"
            ),
            place=self._place(name),
        )

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        key, digest = self._key(name), content_md5(content)
        self._requests.send(
            lambda client: client.put_object(
                Bucket=self._bucket, Key=key, Body=content, ContentMD5=digest, IfMatch=version
            ),
            place=self._place(name),
        )

    def list(self, prefix: str = "") -> Iterator[str]:
        for item in self._items(prefix):
            yield item["Key"].removeprefix(self._root)

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        for item in self._items(prefix):
            name = item["Key"].removeprefix(self._root)
            yield ObjectEntry(name, item["Size"], item["LastModified"].timestamp())

    def list_unfinished(self, prefix: str = "") -> Iterator[Unfinished]:
        key = upload = ""
        while True:
            page = self._uploads_page(self._root + prefix, key, upload)
            for item in page.get("Uploads", []):
                name = item["Key"].removeprefix(self._root)
                yield Unfinished(name, item["UploadId"], 0, item["Initiated"].timestamp())
            key, upload = page.get("NextKeyMarker", ""), page.get("NextUploadIdMarker", "")
            if not page.get("IsTruncated") or not key:
                return

    def discard(self, unfinished: Unfinished) -> None:
        key = self._key(unfinished.name)
        with contextlib.suppress(ObjectNotFoundError):
            self._requests.send(
                lambda client: client.abort_multipart_upload(
                    Bucket=self._bucket, Key=key, UploadId=unfinished.key
                ),
                place=self._place(unfinished.name),
            )

    def delete(self, name: str) -> None:
        key = self._key(name)
        try:
            self._requests.send(
                lambda client: client.delete_object(Bucket=self._bucket, Key=key),
                place=self._place(name),
            )
        except ObjectNotFoundError:
            return  # some services say so

    def open_writer(self, name: str) -> S3Writer:
        return S3Writer(
            self._requests, bucket=self._bucket, key=self._key(name), place=self._place(name)
        )

    def close(self) -> None:
        self._requests.close()

    @property
    def _root(self) -> str:
        return f"{self._prefix}/" if self._prefix else ""

    def _items(self, prefix: str) -> Iterator[ObjectTypeDef]:
        token = ""
        while True:
            page = self._list_page(self._root + prefix, token)
            yield from page.get("Contents", [])
            token = page.get("NextContinuationToken", "")
            if not token:
                return

    def _uploads_page(
        self, prefix: str, key: str, upload: str
    ) -> ListMultipartUploadsOutputTypeDef:
        def ask(client: S3Client) -> ListMultipartUploadsOutputTypeDef:
            if key:
                return client.list_multipart_uploads(
                    Bucket=self._bucket, Prefix=prefix, KeyMarker=key, UploadIdMarker=upload
                )
            return client.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix)

        return self._requests.send(ask, place=f"s3://{self._bucket}/{prefix}")

    def _list_page(self, prefix: str, token: str) -> ListObjectsV2OutputTypeDef:
        def ask(client: S3Client) -> ListObjectsV2OutputTypeDef:
            if token:
                return client.list_objects_v2(
                    Bucket=self._bucket, Prefix=prefix, ContinuationToken=token
                )
            return client.list_objects_v2(Bucket=self._bucket, Prefix=prefix)

        return self._requests.send(ask, place=f"s3://{self._bucket}/{prefix}")

    def _key(self, name: str) -> str:
        check_name(name)
        return f"{self._prefix}/{name}" if self._prefix else name

    def _place(self, name: str) -> str:
        return f"{self.url}/{name}"
