"""The options of a store in addition to its URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, get_args

from headrace.errors import BadArgumentError
from headrace.storage.store.lease import Lease

_Addressing = Literal["auto", "path", "virtual"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How many times and for how long to retry failed requests.

    The wait before attempt n is uniform in ``[0, min(cap_s, base_s * 2**(n - 1)))``.

    Attributes:
        attempts: Attempts in all; 1 means no retries.
        base_s: Upper bound of the first wait, in seconds.
        cap_s: Upper bound of every wait, in seconds.
        budget_s: No attempt starts later than this many seconds after the first one.

    Source: "full jitter" of Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
    """

    attempts: int = 6
    base_s: float = 0.1
    cap_s: float = 5.0
    budget_s: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise BadArgumentError(f"attempts is {self.attempts}, expected >= 1", field="attempts")
        if min(self.base_s, self.cap_s, self.budget_s) < 0:
            raise BadArgumentError(f"a time is negative in {self}", field="retry")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How to reach an object store, and with which credentials.

    Picklable, so that the driver of a job can pass its options to executors. Secrets never appear
    in ``repr`` or in error messages. For options that are `None`, the store's usual rules apply:
    for S3 the usual environment variables, profiles and instance roles.

    Attributes:
        endpoint: URL of an S3-compatible service; `None` is ``AWS_ENDPOINT_URL_S3``,
            ``AWS_ENDPOINT_URL``, or else AWS.
        region: The region to sign requests for.
        access_key: The access key id; needs ``secret_key``.
        secret_key: The secret of ``access_key``.
        session_token: The session token of temporary credentials.
        lease: Credentials that someone else gives and renews, such as a catalog; a copy in another
            process asks for its own.
        profile: A profile of the shared AWS configuration files.
        anonymous: Whether to send unsigned requests.
        requester_pays: Whether to accept the costs of reading a requester-pays bucket.
        addressing: ``auto``, ``path`` or ``virtual`` (bucket in the path or in the host name);
            ``auto`` is ``path`` if an endpoint is given.
        ca_bundle: A file of certificates to trust instead of the usual ones.
        connect_timeout_s: Longest wait for a connection, in seconds.
        read_timeout_s: Longest silence while an object is read, in seconds; then another connection
            is tried. Stores start to answer within a second or two, so this is long (arbitrary).
        write_timeout_s: Longest silence during any other request, in seconds. A store may need long
            to complete a large upload.
        max_connections: The most connections to keep open.
        retry: How to retry failed requests.
        fsspec: Storage options of the fsspec file system, for all other schemes.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    lease: Lease | None = field(default=None, repr=False, metadata={"is_stated": False})
    profile: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    addressing: _Addressing = "auto"
    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 10.0
    write_timeout_s: float = 60.0
    max_connections: int = 64
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    fsspec: Mapping[str, str | int | bool] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.addressing not in get_args(_Addressing):
            wanted = ", ".join(get_args(_Addressing))
            raise BadArgumentError(
                f"addressing is {self.addressing!r}, expected one of {wanted}",
                field="addressing",
            )
        if (self.access_key is None) != (self.secret_key is None):
            raise BadArgumentError(
                "access_key and secret_key belong together; give both or neither",
                field="access_key",
            )
        timeouts = (self.connect_timeout_s, self.read_timeout_s, self.write_timeout_s)
        if min(timeouts) <= 0:
            stated = ", ".join(f"{timeout_s} s" for timeout_s in timeouts)
            raise BadArgumentError(
                f"timeouts are {stated} (connect, read, write), expected > 0",
                field="connect_timeout_s",
            )
        if self.max_connections < 1:
            raise BadArgumentError(
                f"max_connections is {self.max_connections}, expected >= 1", field="max_connections"
            )

    @property
    def has_credentials(self) -> bool:
        """Whether these say who asks, or that nobody does; a lease says that of its store alone."""
        return bool(self.access_key or self.profile or self.anonymous)

    def settings(self) -> dict[str, object]:
        """Return them as a server's settings state them, which is all but a lease."""
        stated = asdict(replace(self, lease=None))
        del stated["lease"]
        return stated


def options_with_environment(
    options: StoreOptions, environment: Mapping[str, str] = os.environ
) -> StoreOptions:
    """Fill in options from the AWS variables, so that they mean the same on other machines.

    Credentials of profiles and of instance roles are not resolved: they expire, and a machine with
    a role uses its own.

    Args:
        options: The options; those that are set take precedence.
        environment: The environment variables of this machine.
    """
    filled = replace(
        options,
        endpoint=options.endpoint
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL"),
        region=options.region
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION"),
    )
    key, secret = (
        environment.get(f"AWS_{part}") for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
    )
    if options.has_credentials or options.lease or not (key and secret):
        return filled
    return replace(
        filled,
        access_key=key,
        secret_key=secret,
        session_token=environment.get("AWS_SESSION_TOKEN"),
    )
