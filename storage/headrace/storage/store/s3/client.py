"""Make the boto3 client of one store, and send requests through it."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar, cast
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader, create_loader
from botocore.session import Session
from urllib3.exceptions import HTTPError

from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage.store.byte_range import ByteRange, WrongBytesError
from headrace.storage.store.options import StoreOptions, options_with_environment
from headrace.storage.store.retry import call_with_retries
from headrace.storage.store.s3.credentials import LeasedCredentials, RenewedCredentials, Resolver
from headrace.storage.store.s3.errors import translate
from headrace.storage.store.s3.get import Answer, S3Gets, SessionSettings
from headrace.storage.store.s3.sigv4 import SigningKeys

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials
    from mypy_boto3_s3 import S3Client

_T = TypeVar("_T")


class S3Requests:
    """A client that retries requests, and raises our errors.

    boto3's own retries are off: they ignore bodies that break off, and nested retries multiply.
    """

    def __init__(self, options: StoreOptions, *, place: str) -> None:
        self._options = options_with_environment(options)
        self._credentials: RenewedCredentials | LeasedCredentials | None = None
        try:
            self._session = _session(self._options)
            self._credentials = _renewed(self._session, self._options)
            self.client: S3Client = _client(self._session, self._options)
            settings = _settings(self._session, self._options)
            self._gets = S3Gets(self.client, self._keys, settings=settings)
        except BotoCoreError as error:
            raise translate(error, place=place, credential=self._credential()) from error
        except ValueError as error:
            raise BadArgumentError(
                f"{place}: {error}; expected http://HOST:PORT or https://HOST as the option "
                "endpoint or in AWS_ENDPOINT_URL",
                field="endpoint",
            ) from error

    def send(self, request: Callable[[S3Client], _T], *, place: str) -> _T:
        """Call ``request`` with the client until it succeeds or the retries are exhausted.

        Args:
            request: Makes one call of boto3 and reads its body.
            place: URL of the object, for errors.

        Raises:
            HeadraceError: See the methods of `Store`.
        """

        def ask() -> _T:
            try:
                return request(self.client)
            except WrongBytesError as error:
                raise error.at(place) from error
            except (BotoCoreError, ClientError, HTTPError) as error:
                raise translate(error, place=place, credential=self._credential()) from error

        def attempt() -> _T:
            used = None if self._credentials is None else self._credentials.current
            try:
                return ask()
            except StoreRefusedError as error:
                if not self._renew(used, error, place):
                    raise
            return ask()

        return call_with_retries(attempt, self._options.retry)

    def get(
        self,
        bucket: str,
        key: str,
        wanted: ByteRange,
        *,
        place: str,
        check: Callable[[Answer], None] = lambda _: None,
    ) -> Answer:
        """Return a range of an object, at half the cost of `send`.

        Args:
            bucket: The name of the bucket; the same in all calls.
            key: The key of the object.
            wanted: The range.
            place: URL of the object, for errors.
            check: Raises `WrongBytesError` for an answer that is not to be used.

        Raises:
            HeadraceError: See the methods of `Store`.
        """

        def ask(_: S3Client) -> Answer:
            answer = self._gets.get(bucket, key, wanted)
            check(answer)
            return answer

        return self.send(ask, place=place)

    def close(self) -> None:
        """Close the connections."""
        self._gets.close()
        self.client.close()

    def _renew(
        self, used: ReadOnlyCredentials | None, refused: StoreRefusedError, place: str
    ) -> bool:
        """Return whether there are newer credentials than those that the store has refused.

        Raises:
            StoreUnavailableError: There are none yet, but there may be soon.
        """
        if self._credentials is None:
            return False
        try:
            # The first request itself has resolved the keys that it used.
            if self._credentials.renew(used or self._credentials.current):
                return True
        except (BotoCoreError, ClientError, OSError) as error:
            raise StoreUnavailableError(
                f"{refused.message}; newer credentials cannot be read: {error}", url=place
            ) from error
        if refused.metadata.get("expired"):
            raise StoreUnavailableError(
                f"{refused.message}; their source has no newer ones yet", url=place
            ) from refused
        return False

    def _keys(self) -> SigningKeys | None:
        found = self._session.get_credentials()
        if found is None:
            return None
        # This renews credentials that are about to expire.
        now = found.get_frozen_credentials()
        return SigningKeys(now.access_key or "", now.secret_key or "", now.token)

    def _credential(self) -> str:
        """Return a description of the credentials, without the secret."""
        if self._options.anonymous:
            return "anonymous access"
        if self._options.access_key:
            # Keys of the environment are passed to boto3 as if they were options.
            return f"access key {self._options.access_key} (from the options or AWS_ACCESS_KEY_ID)"
        used = None if self._credentials is None else self._credentials.current
        if self._credentials is not None and used is not None:
            return f"access key {used.access_key} (from {self._credentials.method})"
        if self._options.profile is not None:
            return f"profile {self._options.profile!r}"
        return "no credentials"


@cache
def _loader(search_path: str | None) -> Loader:
    # boto3 takes 0.1 s to read its description of S3, and would do so for each session.
    return create_loader(search_path)


def _session(options: StoreOptions) -> Session:
    session = Session(profile=options.profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    if options.region:
        session.set_config_variable("region", options.region)
    if options.access_key and options.secret_key:
        session.set_credentials(options.access_key, options.secret_key, options.session_token)
    return session


def _renewed(
    session: Session, options: StoreOptions
) -> RenewedCredentials | LeasedCredentials | None:
    """Give a session credentials that are renewed, unless its keys are fixed."""
    if options.anonymous or options.access_key:
        return None
    if options.lease is not None:
        leased = LeasedCredentials(options.lease)
        session.register_component("credential_provider", Resolver(leased))
        return leased
    files = [session.get_config_variable(name) for name in ("credentials_file", "config_file")]
    made = RenewedCredentials(lambda: _session(options), [file for file in files if file])
    session.register_component("credential_provider", Resolver(made))
    return made


def _client(session: Session, options: StoreOptions) -> S3Client:
    if options.ca_bundle is not None and options.endpoint and options.endpoint.startswith("http:"):
        raise ConfigurationError(
            f"ca_bundle is given, but the endpoint {options.endpoint} does not use TLS"
        )
    made = session.create_client(
        "s3",
        endpoint_url=options.endpoint,
        verify=options.ca_bundle,
        config=Config(
            signature_version=UNSIGNED if options.anonymous else None,
            connect_timeout=options.connect_timeout_s,
            read_timeout=options.write_timeout_s,
            max_pool_connections=options.max_connections,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": _addressing(options)},
            # Many S3-compatible services refuse or corrupt boto3's newer default checksums.
            # Uploads have Content-MD5 instead, and blocks their own checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    client = cast("S3Client", made)
    if options.requester_pays:
        client.meta.events.register("before-call.s3.*", _pay_as_requester)
    return client


def _settings(session: Session, options: StoreOptions) -> SessionSettings:
    return SessionSettings(
        verify=options.ca_bundle
        or session.get_config_variable("ca_bundle")
        or os.environ.get("REQUESTS_CA_BUNDLE")  # botocore uses it too
        or True,
        connect_timeout_s=options.connect_timeout_s,
        read_timeout_s=options.read_timeout_s,
        write_timeout_s=options.write_timeout_s,
        max_connections=options.max_connections,
    )


def _addressing(options: StoreOptions) -> Literal["auto", "path", "virtual"]:
    if options.addressing != "auto" or options.endpoint is None:
        return options.addressing
    host = urlsplit(options.endpoint).hostname or ""
    # Bucket names in host names need DNS entries, which self-hosted services seldom have.
    return "auto" if host.endswith(".amazonaws.com") else "path"


def _pay_as_requester(params: MutableMapping[str, MutableMapping[str, str]], **_: object) -> None:
    params["headers"]["x-amz-request-payer"] = "requester"
