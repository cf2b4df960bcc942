"""Translate errors of boto3: object missing, refused, changed, or worth a retry."""

from __future__ import annotations

from http import HTTPStatus

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
)
from botocore.exceptions import (
    ConnectionError as NoConnectionError,
)
from urllib3.exceptions import HTTPError

from headrace.errors import (
    CommitConflictError,
    ConfigurationError,
    HeadraceError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage.store.safe_url import safe_url

READ_RIGHT = "s3:GetObject"
LIST_RIGHT = "s3:ListBucket"
_ABSENT = {"NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchUpload"}
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_REFUSED = {
    "AccessDenied",
    "AllAccessDisabled",
    "AuthorizationHeaderMalformed",
    *EXPIRED,
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
}
_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "RequestLimitExceeded",
}
_PASSING = {
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "OperationAborted",
    "ConditionalRequestConflict",  # two conditional writes met; the next attempt says who won
}
_LACKING = "NotImplemented"
# A PUT whose body was damaged on the way is refused, and may be sent again.
_DAMAGED = {"BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch"}
# Refusals to a known caller, by code and request; the refusal of a HEAD has only its status.
_DENIED = {"AccessDenied", "AllAccessDisabled"}
_DENIED_HEAD = ("403", "HeadObject")
_BUCKET_RIGHTS = {LIST_RIGHT, "s3:ListBucketMultipartUploads"}
_RIGHTS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "GetObject": READ_RIGHT,
    "HeadObject": READ_RIGHT,
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": LIST_RIGHT,
    "PutObject": "s3:PutObject",
    "UploadPart": "s3:PutObject",
}
_MAX_MESSAGE = 500
_PLAIN_MESSAGES = {"accessdenied", "forbidden", "unknown"}


def resource_of(right: str, place: str) -> str:
    """Return what a right is needed on, as policies name it.

    Args:
        right: A right, such as ``s3:GetObject``.
        place: The URL of the object.
    """
    path = place.removeprefix("s3://")
    return f"arn:aws:s3:::{path.partition('/')[0] if right in _BUCKET_RIGHTS else path}"


def translate(
    error: BotoCoreError | ClientError | HTTPError, *, place: str, credential: str
) -> HeadraceError:
    """Return our error for one of boto3's.

    Args:
        error: The error of boto3, or of urllib3, which boto3 lets through while it reads the body
            of an error.
        place: URL of the object.
        credential: A description of the credentials, without the secret.
    """
    if isinstance(error, ClientError):
        return _translate_answer(error, place, credential)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return StoreRefusedError(
            f"no credentials found for {place} ({error}): looked for AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, for a profile (AWS_PROFILE) in ~/.aws/config and "
            "~/.aws/credentials, for a web identity (AWS_WEB_IDENTITY_TOKEN_FILE and "
            "AWS_ROLE_ARN), and for a role of this container or machine; set one of them where "
            "the store is read, which is each server, and for private servers each worker of the "
            "job; a bucket that everybody may read needs none: "
            "StoreOptions(anonymous=True), or `anonymous: true` under `store` in the "
            "configuration of a server",
            url=place,
        )
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ConfigurationError(
            f"the certificate of the store at {place} is not trusted: {error}; give the file of "
            "its certificate authority as the option ca_bundle or in AWS_CA_BUNDLE",
            url=place,
        )
    if isinstance(error, CredentialRetrievalError | MetadataRetrievalError):
        return StoreUnavailableError(f"no credentials for {place}: {error}", url=place)
    if isinstance(error, HTTPClientError | NoConnectionError | IncompleteReadError | HTTPError):
        return StoreUnavailableError(f"{place} could not be reached: {error}", url=place)
    before = "" if isinstance(error, ProfileNotFound) else f"boto3 cannot request {place}: "
    return ConfigurationError(f"{before}{error}", url=place)


def _translate_answer(error: ClientError, place: str, credential: str) -> HeadraceError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    answer = f"{status} {code}"
    if code == "PreconditionFailed" or status == HTTPStatus.PRECONDITION_FAILED:
        return CommitConflictError(
            f"another writer changed {place} in the meantime ({answer}); nothing was changed, try "
            "again",
            url=place,
        )
    if code in _ABSENT or (status == HTTPStatus.NOT_FOUND and code not in _REFUSED):
        text = f"there is no object for {place} ({answer})"
        if code == "NoSuchBucket":
            text = f"there is no bucket for {place} ({answer}); create it, or correct the URL"
        return ObjectNotFoundError(text, url=place)
    trouble = _trouble(code, status)
    if trouble is not None:
        return StoreUnavailableError(f"the store {trouble} {place} ({answer})", url=place)
    answer += _message_of(error)
    if code in _REFUSED or status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return _refusal(error, answer, place, credential)
    if code == _LACKING or status == HTTPStatus.NOT_IMPLEMENTED:
        return StoreRefusedError(
            f"the store lacks what {error.operation_name} for {place} needs ({answer}); use "
            "another store, or a later version of it",
            url=place,
            status=int(HTTPStatus.NOT_IMPLEMENTED),
        )
    return StoreRefusedError(f"the store refuses the request for {place} ({answer})", url=place)


def _trouble(code: str, status: int) -> str | None:
    """Return what the store does if a later attempt may succeed."""
    if code in _THROTTLED or status in {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }:
        return "throttles"
    is_lacking = code == _LACKING or status == HTTPStatus.NOT_IMPLEMENTED
    if code in _PASSING | _DAMAGED or (
        status >= HTTPStatus.INTERNAL_SERVER_ERROR and not is_lacking
    ):
        return "failed at"
    return None


def _refusal(error: ClientError, answer: str, place: str, credential: str) -> StoreRefusedError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    advice = "check the credentials and their permissions"
    if code == "RequestTimeTooSkewed":
        advice = "set this machine's clock, which differs too much from the store's"
    is_denied = code in _DENIED or (code, error.operation_name) == _DENIED_HEAD
    right = _RIGHTS.get(error.operation_name) if is_denied else None
    if right is None:
        expired = {"expired": True} if code in EXPIRED else {}
        return StoreRefusedError(
            f"the store refuses {place} ({answer}) to {credential}; {advice}", url=place, **expired
        )
    return StoreRefusedError(
        f"the store refuses {place} ({answer}) to {credential}; it needs the right {right} on "
        f"{resource_of(right, place)}",
        url=place,
        right=right,
    )


def _message_of(error: ClientError) -> str:
    """Return what the store says beyond its code, such as who lacks which right."""
    message = str(error.response.get("Error", {}).get("Message") or "").strip().rstrip(".")
    is_plain = not message or message.replace(" ", "").lower() in _PLAIN_MESSAGES
    return "" if is_plain else f": {safe_url(message)[:_MAX_MESSAGE]}"
