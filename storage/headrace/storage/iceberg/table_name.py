"""The URLs of tables: ``iceberg://CATALOG/NAMESPACE.TABLE[@REFERENCE]``."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import BadArgumentError

SCHEME = "iceberg"
_FORM = "iceberg://CATALOG/NAMESPACE.TABLE, then perhaps @ and a snapshot, a branch or a tag"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of a catalog of pyiceberg's configuration.

    Attributes:
        catalog: The name of the catalog.
        table: The name of the table, with its namespace, as ``namespace.table``.
        reference: The id of a snapshot, a branch or a tag; `None` for the current snapshot.
    """

    catalog: str
    table: str
    reference: str | None = None

    @property
    def url(self) -> str:
        """The URL of the table, without a reference."""
        return f"{SCHEME}://{self.catalog}/{self.table}"

    @property
    def title(self) -> str:
        """The catalog, for errors."""
        return f"the catalog {self.catalog!r}"


def table_name(url: str) -> TableName:
    """Return the table of a URL.

    Raises:
        BadArgumentError: It is not a URL of a table.
    """
    catalog, _, rest = url.removeprefix(f"{SCHEME}://").rstrip("/").partition("/")
    table, mark, reference = rest.partition("@")
    namespace, _, name = table.rpartition(".")
    if not (catalog and namespace and name) or "/" in table or (mark and not reference):
        raise BadArgumentError(f"{url[:200]!r} names no table; expected {_FORM}", field="url")
    return TableName(catalog, table, reference or None)
