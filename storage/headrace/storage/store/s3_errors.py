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

_ABSENT = {"NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchUpload"}
_REFUSED = {
    "AccessDenied",
    "AllAccessDisabled",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
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
# A PUT whose body was damaged on the way is refused, and may be sent again.
_DAMAGED = {"BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch"}


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
            f"no credentials found for {place} ({error}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY or a profile, or request anonymous access",
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
    if code in _THROTTLED or status in {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }:
        return StoreUnavailableError(f"the store throttles {place} ({answer})", url=place)
    if code in _PASSING | _DAMAGED or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return StoreUnavailableError(f"the store failed at {place} ({answer})", url=place)
    if code in _REFUSED or status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        advice = "check the credentials and their permissions"
        if code == "RequestTimeTooSkewed":
            advice = "set this machine's clock, which differs too much from the store's"
        return StoreRefusedError(
            f"the store refuses {place} ({answer}) to {credential}; {advice}", url=place
        )
    return StoreRefusedError(f"the store refuses the request for {place} ({answer})", url=place)
