"""Objects of a bucket, with their sizes and entity tags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.errors import BadArgumentError, ObjectNotFoundError
from headrace.storage.objects.objects import FileEntry, content_version, short_read
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.s3_client import S3Requests

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef, ListObjectsV2OutputTypeDef


class S3Files:
    """Objects under a prefix of a bucket."""

    def __init__(self, url: str, *, options: StoreOptions) -> None:
        parts = urlsplit(url)
        if not parts.netloc or parts.query or parts.fragment:
            raise BadArgumentError(f"{url!r} is no s3://bucket/prefix", field="url")
        self._bucket = parts.netloc
        self._prefix = f"{parts.path.strip('/')}/".lstrip("/")
        self._requests = S3Requests(options, place=self.url)

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def entries(self) -> Iterator[FileEntry]:
        token = ""
        while True:
            page = self._page(token)
            for item in page.get("Contents", []):
                name = item["Key"].removeprefix(self._prefix)
                if name and not name.endswith("/"):  # some services list folders as objects
                    yield FileEntry(name, item["Size"], content_version(item["ETag"]))
            token = page.get("NextContinuationToken", "")
            if not token:
                return

    def entry(self, name: str) -> FileEntry | None:
        def ask(client: S3Client) -> HeadObjectOutputTypeDef:
            return client.head_object(Bucket=self._bucket, Key=self._prefix + name)

        try:
            answer = self._requests.send(ask, place=f"{self.url}/{name}")
        except ObjectNotFoundError:
            return None
        return FileEntry(name, answer["ContentLength"], content_version(answer["ETag"]))

    def read(self, entry: FileEntry, *, offset: int, length: int) -> bytes:
        if length == 0:
            return b""

        answer = self._requests.get(
            self._bucket,
            self._prefix + entry.name,
            offset=offset,
            length=length,
            place=f"{self.url}/{entry.name}",
        )
        content, version = answer.content, answer.tag and content_version(answer.tag)
        # The tag of the answer and not If-Match: services exist that ignore the condition.
        if version != entry.version:
            self._check(entry)
        if len(content) != length:
            raise short_read(entry, url=self.url, offset=offset, found=len(content))
        return content

    def close(self) -> None:
        self._requests.close()

    def _check(self, entry: FileEntry) -> None:
        found = self.entry(entry.name)
        if found is not None and found != entry:
            raise entry.changed(found, url=self.url)

    def _page(self, token: str) -> ListObjectsV2OutputTypeDef:
        def ask(client: S3Client) -> ListObjectsV2OutputTypeDef:
            if token:
                return client.list_objects_v2(
                    Bucket=self._bucket, Prefix=self._prefix, ContinuationToken=token
                )
            return client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix)

        return self._requests.send(ask, place=self.url)
