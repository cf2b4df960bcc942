"""Ask a catalog for a table, with a deadline, and in words of ours where it fails.

A catalog is whatever pyiceberg's configuration says: REST, SQL, Glue, Hive. Its libraries wait as
long as they like, so each question is asked in a thread that is given up after `DEADLINE_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    NotADatasetError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage.iceberg.table_name import TableName
from headrace.storage.store.deadline import NoAnswerError, within
from headrace.storage.store.lease import Grant
from headrace.storage.store.safe_url import safe_url

if TYPE_CHECKING:
    from pyiceberg.table import Table

DEADLINE_S = 20.0
"""For one question to a catalog. Arbitrary: loading a table takes 10 to 500 ms."""

_MAX_TEXT = 300
_GONE = {"NoSuchTableError", "NoSuchNamespaceError", "NoSuchIcebergTableError"}
_REFUSED = {"AuthorizationExpiredError", "ForbiddenError", "OAuthError", "UnauthorizedError"}
_AWAY = {
    *("OperationalError", "RequestException", "ServerError", "ServiceUnavailableError"),
    *("TTransportException", "TooManyRequestsError"),
}
_AWAY_TYPES = (OSError, TimeoutError)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table, as its catalog describes it now.

    Attributes:
        table: The table of pyiceberg.
        grant: Credentials that the catalog gives for it; `None` if it gives none.
        properties: The properties of its files: endpoint, region, and so on.
    """

    table: Table
    grant: Grant | None
    properties: Mapping[str, str]


def find_table(name: TableName) -> FoundTable:
    """Ask a catalog for a table.

    Raises:
        ConfigurationError: pyiceberg is not installed, or has no such catalog; or its answer
            cannot be understood.
        NotADatasetError: There is no such table.
        StoreRefusedError: The catalog refuses.
        StoreUnavailableError: The catalog cannot be reached, or does not answer in time.
    """
    return asked(lambda: _found(name, _configured(name)), name=name)


def asked(ask: Callable[[], _T], *, name: TableName, deadline_s: float = DEADLINE_S) -> _T:
    """Call a function that may hang, and translate its errors.

    Raises:
        HeadraceError: See `find_table`.
    """
    try:
        return within(deadline_s, ask, name="headrace-catalog")
    except NoAnswerError:
        raise StoreUnavailableError(
            f"{name.title} did not answer within {deadline_s:g} s about {name.table}", url=name.url
        ) from None
    except HeadraceError:
        raise
    except Exception as error:
        raise _translated(error, name) from error


def _configured(name: TableName) -> Mapping[str, object]:
    """Return the configuration of a catalog, as it is now."""
    try:
        from pyiceberg.utils.config import Config  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigurationError(
            f"{name.url} needs the pyiceberg package: pip install 'headrace[iceberg]'",
            url=name.url,
        ) from error
    config = Config()
    found: Mapping[str, object] | None = config.get_catalog_config(name.catalog)
    if not found:
        catalogs = config.config.get("catalog")
        known = sorted(catalogs) if isinstance(catalogs, dict) else []
        raise ConfigurationError(
            f"pyiceberg's configuration has no catalog {name.catalog!r}; it has "
            f"{', '.join(known) or 'none'}. Set PYICEBERG_CATALOG__{name.catalog.upper()}__URI and "
            "so on, or write .pyiceberg.yaml into PYICEBERG_HOME, the home folder or the current "
            "one, where the table is read: on each server, and for private servers in each worker "
            "of the job",
            url=name.url,
        )
    return found


def _found(name: TableName, configured: Mapping[str, object]) -> FoundTable:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra

    catalog = load_catalog(name.catalog, **cast("dict[str, str]", configured))
    try:
        table = catalog.load_table(name.table)
        properties = {key: str(value) for key, value in table.io.properties.items()}
        return FoundTable(table, _grant(properties, catalog.properties), properties)
    finally:
        catalog.close()


def _grant(properties: Mapping[str, str], own: Mapping[str, object]) -> Grant | None:
    """Return the keys of S3 that a catalog gives, unless they are the operator's own."""
    key, secret, token = (
        properties.get(f"s3.{part}")
        for part in ("access-key-id", "secret-access-key", "session-token")
    )
    if key is None or secret is None or key == own.get("s3.access-key-id"):
        return None
    values = {"access_key": key, "secret_key": secret}
    if token is not None:
        values["session_token"] = token
    expires = properties.get("s3.session-token-expires-at-ms")
    return Grant(values, None if expires is None else int(expires) / 1000)


@dataclass(frozen=True, slots=True)
class TableVendor:
    """Gives the credentials of a table, by loading it again.

    Attributes:
        name: The table.
        identity: Its UUID, so that no credentials of another table of its name are used.
    """

    name: TableName
    identity: str

    @property
    def title(self) -> str:
        """The catalog."""
        return self.name.title

    def __call__(self) -> Grant:
        """Ask for credentials; see `headrace.storage.store.lease.Vendor`."""
        try:
            found = find_table(self.name)
        except NotADatasetError as error:
            raise StoreRefusedError(
                f"no credentials for {self.name.url}: {error.message}", url=self.name.url
            ) from error
        if str(found.table.metadata.table_uuid) != self.identity:
            raise StoreRefusedError(
                f"{self.name.url} is another table now, of the same name, so {self.title} gives no "
                "credentials for the one that is read; start over with the new one",
                url=self.name.url,
            )
        if found.grant is None:
            raise StoreRefusedError(
                f"{self.title} gives no credentials for {self.name.table} any more, though it "
                "accepts the request; its log says why",
                url=self.name.url,
            )
        return found.grant


def _translated(error: Exception, name: TableName) -> HeadraceError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    first = str(error).strip().partition("\n")[0]
    found = safe_url(f"{type(error).__name__}: {first}")[:_MAX_TEXT]
    if kinds & _GONE:
        return NotADatasetError(
            f"{name.title} has no table {name.table}: {found}; check the name", url=name.url
        )
    if kinds & _REFUSED:
        return StoreRefusedError(
            f"{name.title} refuses {name.table}: {found}; check its credentials in pyiceberg's "
            "configuration, and their rights",
            url=name.url,
        )
    if kinds & _AWAY or isinstance(error, _AWAY_TYPES):
        return StoreUnavailableError(
            f"{name.title} cannot be asked about {name.table}: {found}", url=name.url
        )
    return ConfigurationError(
        f"{name.title} cannot be asked about {name.table}: {found}; check pyiceberg's "
        "configuration",
        url=name.url,
    )
