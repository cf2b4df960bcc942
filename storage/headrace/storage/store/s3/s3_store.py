"""A bucket, or a prefix in one, as a store: S3 and compatible services."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict

from headrace.errors import (
    BadArgumentError,
    ObjectNotFoundError,
    StoreRefusedError,
    WorldError,
)
from headrace.storage.store.byte_range import ByteRange, WrongBytesError
from headrace.storage.store.names import check_below, check_name
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.s3.client import S3Requests
from headrace.storage.store.s3.errors import LIST_RIGHT, READ_RIGHT, resource_of
from headrace.storage.store.s3.get import Answer
from headrace.storage.store.s3.writer import S3Writer, content_md5
from headrace.storage.store.safe_url import safe_url
from headrace.storage.store.store import (
    MAY_BE_MISSING,
    ObjectEntry,
    PendingUpload,
    Version,
    check_length,
    content_version,
    may_be_missing,
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
        # Not parsed as a URL, because # is a character of keys.
        self._bucket, _, path = url.partition("://")[2].partition("/")
        self._prefix = path.strip("/")
        if not self._bucket:
            raise BadArgumentError(
                f"{safe_url(url)!r} has no bucket; expected s3://bucket/prefix", field="url"
            )
        if "@" in self._bucket or "?" in url or "#" in self._bucket:
            raise BadArgumentError(
                f"{safe_url(url)!r} contains more than a bucket and a prefix; give credentials as "
                "AWS tools take them (environment variables, a profile or a role), other options "
                "as StoreOptions, and rename a folder whose name contains ?",
                field="url",
            )
        self._options = options
        self._requests = S3Requests(options, place=self.url)

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        key, wanted = self._key(name), ByteRange(offset, length)
        try:
            return self._requests.get(self._bucket, key, wanted, place=self._place(name)).content
        except StoreRefusedError as error:
            raise self._explained(error, key) from error

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        key = self._key(name)

        def get(client: S3Client) -> tuple[bytes, Version]:
            answer = client.get_object(Bucket=self._bucket, Key=key)
            with contextlib.closing(answer["Body"]) as body:
                return body.read(), Version(answer["ETag"])

        try:
            return self._requests.send(get, place=self._place(name))
        except StoreRefusedError as error:
            raise self._explained(error, key) from error

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
        key = self._listed_key(name)

        def ask(client: S3Client) -> HeadObjectOutputTypeDef:
            return client.head_object(Bucket=self._bucket, Key=key)

        try:
            answer = self._requests.send(ask, place=self._place(name))
        except ObjectNotFoundError:
            return None
        except StoreRefusedError as error:
            explained = self._explained(error, key)
            if may_be_missing(explained):
                return None
            raise explained from error
        version = content_version(answer["ETag"])
        return ObjectEntry(
            name, answer["ContentLength"], version, answer["LastModified"].timestamp()
        )

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        if length == 0:
            return b""

        def check(answer: Answer) -> None:
            """Compare the answer, because some services ignore If-Match."""
            version = content_version(answer.tag)
            if (
                answer.tag
                and version == entry.version
                and answer.object_bytes in {None, entry.stored_bytes}
            ):
                return
            found = self.entry(entry.name)
            if found is not None and found != entry:
                raise entry.changed(found, url=self.url)
            if answer.tag:
                raise WrongBytesError(
                    f"the answer is of another version than the object: {version} of "
                    f"{answer.object_bytes} bytes found, {entry.version} of {entry.stored_bytes} "
                    "expected"
                )

        key, wanted = self._listed_key(entry.name), ByteRange(offset, length)
        place = self._place(entry.name)
        try:
            answer = self._requests.get(self._bucket, key, wanted, place=place, check=check)
        except StoreRefusedError as error:
            raise self._explained(error, key) from error
        check_length(answer.content, entry, url=self.url, offset=offset, length=length)
        return answer.content

    def list_unfinished(self) -> Iterator[PendingUpload]:
        key = upload = ""
        while True:
            page = self._uploads_page(key, upload)
            for item in page.get("Uploads", []):
                name = item["Key"].removeprefix(self._root)
                yield PendingUpload(name, item["UploadId"], 0, item["Initiated"].timestamp())
            key, upload = page.get("NextKeyMarker", ""), page.get("NextUploadIdMarker", "")
            if not page.get("IsTruncated") or not key:
                return

    def discard(self, unfinished: PendingUpload) -> None:
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

    def below(self, name: str) -> S3Store:
        inner = S3Store(f"s3://{self._bucket}", options=self._options)
        inner._prefix = self._key(name)
        return inner

    def close(self) -> None:
        self._requests.close()

    def _explained(self, error: StoreRefusedError, key: str) -> WorldError:
        """Return why an object may not be read, which is often that there is none.

        To a role without the right to list, S3 answers 403 for objects that are missing, too.
        """
        if error.metadata.get("right") != READ_RIGHT:
            return error
        try:
            page = self._requests.send(
                lambda client: client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1),
                place=f"s3://{self._bucket}/{key}",
            )
        except StoreRefusedError as refused:
            if "right" not in refused.metadata:
                return refused  # such as a wrong key, which HEAD does not tell
            bucket = resource_of(LIST_RIGHT, f"s3://{self._bucket}")
            return StoreRefusedError(
                f"{error.message}, or there is no such object, which only a role with {LIST_RIGHT} "
                f"on {bucket} is told",
                **error.metadata,
                **{MAY_BE_MISSING: True},
            )
        except WorldError:
            return error
        if any(item["Key"] == key for item in page.get("Contents", [])):
            return error
        return ObjectNotFoundError(f"there is no object for s3://{self._bucket}/{key}")

    @property
    def _root(self) -> str:
        return f"{self._prefix}/" if self._prefix else ""

    def _put(self, name: str, content: bytes, condition: _Condition) -> None:
        key, digest = self._key(name), content_md5(content)
        try:
            self._requests.send(
                lambda client: client.put_object(
                    Bucket=self._bucket, Key=key, Body=content, ContentMD5=digest, **condition
                ),
                place=self._place(name),
            )
        except StoreRefusedError as error:
            if not condition or error.metadata.get("status") != "501":
                raise
            raise StoreRefusedError(
                f"the store at {self.url} has no conditional writes ({', '.join(condition)}), "
                "which keep concurrent writers from replacing each other's datasets: "
                f"{error.message}",
                **error.metadata,
            ) from error

    def _items(self, prefix: str) -> Iterator[ObjectTypeDef]:
        token = ""
        while True:
            page = self._list_page(self._root + prefix, token)
            for item in page.get("Contents", []):
                if not item["Key"].startswith(self._root + prefix):
                    raise WrongBytesError(
                        f"the listing has {item['Key'][:200]!r}, which is elsewhere"
                    ).at(self._place(prefix))
                yield item
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

    def _listed_key(self, name: str) -> str:
        # Other programs may give any name, but some services resolve `..`.
        check_below(name)
        return self._root + name

    def _place(self, name: str) -> str:
        return f"{self.url}/{name}"
