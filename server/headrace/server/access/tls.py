"""The certificates of a server; new connections use changed files."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path

import grpc

from headrace.errors import ConfigurationError

Stamp = tuple[tuple[int, int, int], ...]

_log = logging.getLogger(__name__)


def tls_credentials(cert: str, key: str, client_ca: str) -> grpc.ServerCredentials | None:
    """Return the credentials for TLS, or None if no files are given.

    Raises:
        ConfigurationError: A file cannot be read, or certificate and key do not match.
    """
    if not cert:
        return None
    files = _Files(cert, key, client_ca)
    return grpc.dynamic_ssl_server_credentials(
        files.read(),
        files.renewed,  # type: ignore[arg-type]  # it may return None, say gRPC's own documents
        require_client_authentication=bool(client_ca),
    )


class _Files:
    """The PEM files; safe for several threads."""

    def __init__(self, cert: str, key: str, client_ca: str) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._lock = threading.Lock()
        self._stamp = stamp_of(self._cert, self._key, self._client_ca)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Read and check the files.

        Raises:
            ConfigurationError: One cannot be read, or certificate and key do not match.
        """
        pair = (_pem(self._key), _pem(self._cert))
        authorities = _pem(self._client_ca) if self._client_ca else None
        try:
            # gRPC itself would only notice at the first connection, and not report it.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self._cert, self._key
            )
            if self._client_ca:
                ssl.create_default_context(cafile=self._client_ca)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                f"cannot serve TLS with {self._cert}, {self._key} and "
                f"{self._client_ca or 'no client authority'} ({error.strerror}); give a PEM "
                "certificate, its private key, and certificate authorities"
            ) from error
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the contents of the files if they changed; gRPC asks at each connection.

        While they are damaged or only partly replaced, the server continues with the old ones.
        """
        with self._lock:
            stamp = stamp_of(self._cert, self._key, self._client_ca)
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            try:
                found = self.read()
            except ConfigurationError as error:
                _log.error("the certificate was not changed: %s", error.message)
                return None
        _log.info("certificate read again from %s", self._cert)
        return found


def stamp_of(*paths: str) -> Stamp:
    """Return what changes when one of the files does; empty paths are left out."""
    return tuple(_stamp_of(Path(path)) for path in filter(None, paths))


def _stamp_of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _pem(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path} ({error.strerror}); give a PEM file that this user may read"
        ) from error
