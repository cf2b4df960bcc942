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

from headrace.errors import BadArgumentError, ConfigurationError
from headrace.storage.store.options import StoreOptions, options_with_environment
from headrace.storage.store.retry import call_with_retries
from headrace.storage.store.s3_errors import translate
from headrace.storage.store.s3_get import Answer, S3Gets, SessionSettings
from headrace.storage.store.sigv4 import SigningKeys

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_T = TypeVar("_T")


class S3Requests:
    """A client that retries requests, and raises our errors.

    boto3's own retries are off: they ignore bodies that break off, and nested retries multiply.
    """

    def __init__(self, options: StoreOptions, *, place: str) -> None:
        self._options = options_with_environment(options)
        try:
            self._session = _session(self._options)
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

        def attempt() -> _T:
            try:
                return request(self.client)
            except (BotoCoreError, ClientError, HTTPError) as error:
                raise translate(error, place=place, credential=self._credential()) from error

        return call_with_retries(attempt, self._options.retry)

    def get(self, bucket: str, key: str, *, offset: int, length: int | None, place: str) -> Answer:
        """Return a range of an object, at half the cost of `send`.

        Args:
            bucket: The name of the bucket; the same in all calls.
            key: The key of the object.
            offset: The first byte.
            length: Number of bytes, > 0, or `None` for the rest.
            place: URL of the object, for errors.

        Raises:
            HeadraceError: See the methods of `Store`.
        """
        stop = "" if length is None else str(offset + length - 1)
        return self.send(
            lambda _: self._gets.get(bucket, key, f"bytes={offset}-{stop}"), place=place
        )

    def close(self) -> None:
        """Close the connections."""
        self._gets.close()
        self.client.close()

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
        try:
            found = self._session.get_credentials()
            # Reading the key may renew credentials, and fail.
            key = "" if found is None else found.access_key
        except (AttributeError, BotoCoreError, ClientError):
            if self._options.profile is None:
                return "credentials that cannot be renewed"
            return f"profile {self._options.profile!r}"
        if found is None:
            return "no credentials"
        # Keys of the environment are passed to boto3 as if they were options.
        method = found.method
        source = "the options or AWS_ACCESS_KEY_ID" if method == "explicit" else method
        return f"access key {key} (from {source})"


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
