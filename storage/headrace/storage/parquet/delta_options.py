"""Convert `StoreOptions` to options of the ``deltalake`` package for the same store."""

from __future__ import annotations

import boto3
from botocore.exceptions import BotoCoreError

from headrace.errors import ConfigurationError
from headrace.storage.store.options import StoreOptions, options_with_environment


def delta_options(url: str, options: StoreOptions) -> dict[str, str]:
    """Return the storage options of ``deltalake`` for a URL.

    Raises:
        ConfigurationError: The named profile does not exist.
    """
    if not url.startswith(("s3://", "s3a://", "s3n://")):
        return {key: str(value) for key, value in options.fsspec.items()}
    filled = options_with_environment(options)
    wanted = {
        "AWS_ENDPOINT_URL": filled.endpoint,
        "AWS_REGION": filled.region or "us-east-1",
        "AWS_ALLOW_HTTP": str((filled.endpoint or "").startswith("http:")).lower(),
        "AWS_SKIP_SIGNATURE": str(filled.anonymous).lower(),
        "AWS_REQUEST_PAYER": str(filled.requester_pays).lower(),
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": str(filled.addressing == "virtual").lower(),
        "timeout": f"{filled.write_timeout_s:.0f}s",
        "connect_timeout": f"{filled.connect_timeout_s:.0f}s",
        **_credentials(filled),
    }
    return {key: value for key, value in wanted.items() if value is not None}


def _credentials(options: StoreOptions) -> dict[str, str | None]:
    if options.anonymous:
        return {}
    if options.access_key is not None:
        return {
            "AWS_ACCESS_KEY_ID": options.access_key,
            "AWS_SECRET_ACCESS_KEY": options.secret_key,
            "AWS_SESSION_TOKEN": options.session_token,
        }
    if options.lease is not None:
        given = options.lease.get().values
        return {
            "AWS_ACCESS_KEY_ID": given["access_key"],
            "AWS_SECRET_ACCESS_KEY": given["secret_key"],
            "AWS_SESSION_TOKEN": given.get("session_token"),
        }
    # boto3 resolves profiles and instance roles, so that both use the same credentials.
    try:
        found = boto3.Session(profile_name=options.profile).get_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(f"no credentials for a Delta table: {error}") from error
    if found is None:
        return {}
    frozen = found.get_frozen_credentials()
    return {
        "AWS_ACCESS_KEY_ID": frozen.access_key,
        "AWS_SECRET_ACCESS_KEY": frozen.secret_key,
        "AWS_SESSION_TOKEN": frozen.token,
    }
