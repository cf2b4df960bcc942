"""A bucket, or a prefix in one, as a store: S3 and compatible services."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

from headrace.errors import BadArgumentError, ObjectNotFoundError
from headrace.storage.store.names import check_name
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.s3_client import S3Requests
from headrace.storage.store.s3_writer import S3Writer, content_md5
from headrace.storage.store.safe_url import safe_url
from headrace.storage.store.store import (
    ObjectEntry,
    Unfinished,
    Version,
    check_length,
    content_version,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        HeadObjectOutputTypeDef,
        ListMultipartUploadsOutputTypeDef,
        ListObjectsV2OutputTypeDef,
        ObjectTypeDef,
    )


class _Condition(TypedDict, total=False):
    """The condition of a write: replace an object with a certain tag, or create a new one."""

    IfMatch: str
    IfNoneMatch: str


class S3Store:
    """Objects under a prefix of a bucket."""

    def __init__(self, url: str, *, options: StoreOptions) -> None:
        parts = urlsplit(url)
        if not parts.netloc:
            raise BadArgumentError(
                f"{safe_url(url)!r} has no bucket; expected s3://bucket/prefix", field="url"
            )
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise BadArgumentError(
                f"{safe_url(url)!r} contains more than a bucket and a prefix; give credentials as "
                "AWS tools take them: environment variables, a profile or a role",
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
        self._put(name, content, {})

    def write_if_absent(self, name: str, content: bytes) -> None:
        self._put(name, content, {"IfNoneMatch": "*"})

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        self._put(name, content, {"IfMatch": version})

    def list(self, prefix: str = "") -> Iterator[str]:
        for entry in self.list_entries(prefix):
            yield entry.name

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        for item in self._items(prefix):
            name = item["Key"].removeprefix(self._root)
            if name and not name.endswith("/"):  # some services list folders as objects
                version = content_version(item["ETag"])
                yield ObjectEntry(name, item["Size"], version, item["LastModified"].timestamp())

    def entry(self, name: str) -> ObjectEntry | None:
        key = self._root + name  # not checked, since other programs may give any name

        def ask(client: S3Client) -> HeadObjectOutputTypeDef:
            return client.head_object(Bucket=self._bucket, Key=key)

        try:
            answer = self._requests.send(ask, place=self._place(name))
        except ObjectNotFoundError:
            return None
        version = content_version(answer["ETag"])
        return ObjectEntry(
            name, answer["ContentLength"], version, answer["LastModified"].timestamp()
        )

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        answer = self._requests.get(
            self._bucket,
            self._root + entry.name,
            offset=offset,
            length=length,
            place=self._place(entry.name),
        )
        # Compares the tag of the answer, because some services ignore If-Match.
        if not answer.tag or content_version(answer.tag) != entry.version:
            found = self.entry(entry.name)
            if found is not None and found != entry:
                raise entry.changed(found, url=self.url)
        check_length(answer.content, entry, url=self.url, offset=offset, length=length)
        return answer.content

    def list_unfinished(self) -> Iterator[Unfinished]:
        key = upload = ""
        while True:
            page = self._uploads_page(key, upload)
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
            return  # some services report it

    def open_writer(self, name: str) -> S3Writer:
        return S3Writer(
            self._requests, bucket=self._bucket, key=self._key(name), place=self._place(name)
        )

    def close(self) -> None:
        self._requests.close()

    @property
    def _root(self) -> str:
        return f"{self._prefix}/" if self._prefix else ""

    def _put(self, name: str, content: bytes, condition: _Condition) -> None:
        key, digest = self._key(name), content_md5(content)
        self._requests.send(
            lambda client: client.put_object(
                Bucket=self._bucket, Key=key, Body=content, ContentMD5=digest, **condition
            ),
            place=self._place(name),
        )

    def _items(self, prefix: str) -> Iterator[ObjectTypeDef]:
        token = ""
        while True:
            page = self._list_page(self._root + prefix, token)
            yield from page.get("Contents", [])
            token = page.get("NextContinuationToken", "")
            if not token:
                return

    def _uploads_page(self, key: str, upload: str) -> ListMultipartUploadsOutputTypeDef:
        def ask(client: S3Client) -> ListMultipartUploadsOutputTypeDef:
            if key:
                return client.list_multipart_uploads(
                    Bucket=self._bucket, Prefix=self._root, KeyMarker=key, UploadIdMarker=upload
                )
            return client.list_multipart_uploads(Bucket=self._bucket, Prefix=self._root)

        return self._requests.send(ask, place=f"s3://{self._bucket}/{self._root}")

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
