"""Tables of Unity Catalog: their names, what the catalog says about them, and their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    NotADatasetError,
    StoreRefusedError,
)
from headrace.storage.store.databricks.workspace import TITLE, asked, keys_of_s3
from headrace.storage.store.lease import Grant

SCHEME = "uc"
_PARTS = 3
_READ = ("DELTA", "PARQUET")


@dataclass(frozen=True, slots=True)
class UnityName:
    """A table by its name.

    Attributes:
        table: ``catalog.schema.table``.
        version: The version of a Delta table, or `None` for the current one.
    """

    table: str
    version: int | None = None

    @property
    def url(self) -> str:
        """The URL of the table, without a version."""
        return f"{SCHEME}://{self.table}"


@dataclass(frozen=True, slots=True)
class UnityTable:
    """A table as the catalog describes it.

    Attributes:
        name: Its name.
        identity: Its id, which another table of the same name does not have.
        location: The URL of its files.
    """

    name: UnityName
    identity: str
    location: str


def unity_name(url: str) -> UnityName:
    """Return the table of ``uc://catalog.schema.table[@version]``.

    Raises:
        BadArgumentError: It is not such a URL.
    """
    table, mark, version = url.removeprefix(f"{SCHEME}://").rstrip("/").partition("@")
    parts = table.split(".")
    if len(parts) != _PARTS or not all(parts) or "/" in table or (mark and not version.isdecimal()):
        raise BadArgumentError(
            f"{url[:200]!r} names no table; expected {SCHEME}://CATALOG.SCHEMA.TABLE, then perhaps "
            "@ and a version of a Delta table",
            field="url",
        )
    return UnityName(table, int(version) if mark else None)


def find_table(name: UnityName) -> UnityTable:
    """Ask the catalog for a table.

    Raises:
        NotADatasetError: There is no such table.
        ConfigurationError: It is a view, or of a format that is not read; or nobody can be asked.
        StoreRefusedError: The catalog refuses.
        StoreUnavailableError: It cannot be reached.
    """
    found: Any = asked(lambda client: client.tables.get(name.table), about=name.url)
    kind = str(getattr(found.data_source_format, "name", found.data_source_format))
    if not found.storage_location or not found.table_id:
        what = str(getattr(found.table_type, "name", "view")).lower().replace("_", " ")
        raise ConfigurationError(
            f"{name.url} is a {what}, which has no files of its own; give the table that it shows, "
            'or convert it with Spark: write_shards(spark.read.table(NAME), "s3://bucket/dataset")',
            url=name.url,
        )
    if found.row_filter is not None or any(one.mask for one in found.columns or ()):
        raise StoreRefusedError(
            f"{name.url} has a filter of rows or masks of columns, which its files do not; convert "
            "with Spark what your identity may read",
            url=name.url,
        )
    if kind not in _READ:
        advice = "give iceberg://… by the catalog's Iceberg REST API, or " * (kind == "ICEBERG")
        raise ConfigurationError(
            f"{name.url} has the format {kind}, and headrace reads {' and '.join(_READ)} by "
            f"{SCHEME}://; {advice}convert it with Spark: write_shards(spark.read.table(NAME), "
            '"s3://bucket/dataset")',
            url=name.url,
        )
    return UnityTable(name, str(found.table_id), str(found.storage_location).rstrip("/"))


@dataclass(frozen=True, slots=True)
class UnityVendor:
    """Gives the credentials of a table; see `headrace.storage.store.lease.Vendor`.

    Attributes:
        table: The table.
    """

    table: UnityTable

    @property
    def title(self) -> str:
        """The catalog."""
        return TITLE

    def __call__(self) -> Grant:
        """Ask for credentials, by the table's id."""
        from databricks.sdk.service.catalog import TableOperation  # noqa: PLC0415 - an extra

        url = self.table.name.url
        try:
            answer = asked(
                lambda client: (
                    client.temporary_table_credentials.generate_temporary_table_credentials(
                        table_id=self.table.identity, operation=TableOperation.READ
                    )
                ),
                about=url,
            )
        except NotADatasetError as error:
            raise StoreRefusedError(f"no credentials: {error.message}", url=url) from error
        return keys_of_s3(answer, about=url)
