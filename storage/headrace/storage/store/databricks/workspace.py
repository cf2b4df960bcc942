"""Ask a Databricks workspace, or an open-source Unity Catalog, by the identity of this machine.

databricks-sdk finds the identity, as for all of Databricks' tools: environment variables, a
profile, OAuth, Azure's and Google's identities. It also makes the requests of the REST API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    NotADatasetError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage.store.deadline import NoAnswerError, within
from headrace.storage.store.lease import Grant
from headrace.storage.store.safe_url import safe_url

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

TITLE = "Unity Catalog"
DEADLINE_S = 20.0
"""For one question. Arbitrary: an answer takes 50 to 500 ms."""

_RIGHTS = (
    "the identity of this machine needs the rights USE CATALOG, USE SCHEMA, SELECT and EXTERNAL "
    "USE SCHEMA, and the metastore must allow access from outside"
)
_MAX_TEXT = 300
_NO_IDENTITY = "cannot configure default credentials"
_T = TypeVar("_T")


def asked(
    ask: Callable[[WorkspaceClient], _T], *, about: str, deadline_s: float = DEADLINE_S
) -> _T:
    """Ask the workspace of this machine's identity.

    Args:
        ask: Gets a client, and makes requests.
        about: What is asked about, a URL.
        deadline_s: How long to wait, in seconds.

    Raises:
        ConfigurationError: There is no identity, or databricks-sdk is not installed.
        NotADatasetError: There is no such thing.
        StoreRefusedError: The workspace refuses.
        StoreUnavailableError: It cannot be reached, or does not answer in time.
    """
    try:
        import databricks.sdk  # noqa: F401, PLC0415 - an extra; takes seconds on a busy machine
    except ImportError as error:
        raise ConfigurationError(
            f"{about} needs the databricks-sdk package: pip install 'headrace[databricks]'",
            url=about,
        ) from error

    def answer() -> _T:
        return ask(_client(deadline_s))

    try:
        return within(deadline_s, answer, name="headrace-workspace")
    except NoAnswerError:
        raise StoreUnavailableError(
            f"{TITLE} did not answer within {deadline_s:g} s about {about}", url=about
        ) from None
    except HeadraceError:
        raise
    except Exception as error:
        raise _translated(error, about) from error


def keys_of_s3(answer: Any, *, about: str) -> Grant:
    """Return temporary credentials in the terms of our stores.

    Args:
        answer: What the workspace gave for a table or a volume.
        about: The URL of the table or volume.

    Raises:
        StoreRefusedError: It gave none, or those of another kind of store.
    """
    found = answer.aws_temp_credentials
    if found is None:
        kinds = ("azure_user_delegation_sas", "azure_aad", "gcp_oauth_token", "r2_temp_credentials")
        other = [kind for kind in kinds if getattr(answer, kind, None) is not None]
        raise StoreRefusedError(
            f"{TITLE} gave {', '.join(other) or 'no credentials'} for {about}, and headrace uses "
            "those of S3 alone; give others for its location as `store` in the configuration of "
            "the server, and the location as the URL",
            url=about,
        )
    values = {"access_key": found.access_key_id, "secret_key": found.secret_access_key}
    if found.session_token:
        values["session_token"] = found.session_token
    expires = answer.expiration_time
    return Grant(values, None if expires is None else expires / 1000)


def _client(deadline_s: float) -> WorkspaceClient:
    from databricks.sdk import WorkspaceClient  # noqa: PLC0415 - an extra
    from databricks.sdk.core import Config  # noqa: PLC0415 - as above

    # Our own retries follow; a renewal of credentials must not wait for minutes.
    seconds = max(1, int(deadline_s / 2))
    return WorkspaceClient(
        config=Config(retry_timeout_seconds=seconds, http_timeout_seconds=seconds)
    )


def _translated(error: Exception, about: str) -> HeadraceError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    first = str(error).strip().partition("\n")[0].partition(". Config: ")[0]
    found = safe_url(f"{type(error).__name__}: {first}")[:_MAX_TEXT]
    if isinstance(error, ValueError) and _NO_IDENTITY in str(error):
        return ConfigurationError(
            f"no identity to ask {TITLE} about {about} with: looked for DATABRICKS_HOST with "
            "DATABRICKS_TOKEN, or with DATABRICKS_CLIENT_ID and DATABRICKS_CLIENT_SECRET, for a "
            "profile (DATABRICKS_CONFIG_PROFILE) in ~/.databrickscfg, and for identities of Azure "
            "and Google; set one of them where the data are read, which is each server, and for "
            "private servers each worker of the job",
            url=about,
        )
    if kinds & {"NotFound"}:
        return NotADatasetError(f"{TITLE} has no {about}: {found}; check the name", url=about)
    if kinds & {"PermissionDenied", "Unauthenticated"}:
        return StoreRefusedError(
            f"{TITLE} refuses {about}: {found}; {_RIGHTS}",
            url=about,
        )
    if isinstance(error, OSError) and not kinds & {"BadRequest"}:
        return StoreUnavailableError(f"{TITLE} cannot be asked about {about}: {found}", url=about)
    return ConfigurationError(f"{TITLE} cannot be asked about {about}: {found}", url=about)
