"""TLS on the lane, with the files of gRPC's; new connections use changed files."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from typing import Self

from headrace.server.access.tls import stamp_of
from headrace.server.settings.server_config import ServerConfig

_log = logging.getLogger(__name__)


class Encryption:
    """Makes connections TLS; safe for several threads.

    Args:
        cert: The PEM file with the certificate chain.
        key: The PEM file with its key.
        client_ca: The PEM file with the authorities of clients; empty to ask for no certificates.
    """

    def __init__(self, cert: str, key: str, client_ca: str) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._lock = threading.Lock()
        self._stamp = stamp_of(self._cert, self._key, self._client_ca)
        self._context = self._loaded()

    @classmethod
    def of(cls, config: ServerConfig) -> Self | None:
        """Return what a server's settings ask for; None for plain text.

        gRPC has checked the files.
        """
        if not config.tls_cert:
            return None
        try:
            return cls(config.tls_cert, config.tls_key, config.tls_client_ca)
        except OSError:
            return None

    def around(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return a connection that is TLS once its handshake is done."""
        return self._newest().wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )

    def _newest(self) -> ssl.SSLContext:
        with self._lock:
            stamp = stamp_of(self._cert, self._key, self._client_ca)
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._context = self._loaded()
                except OSError as error:
                    _log.error("the lane's certificate was not changed: %s", error)
            return self._context

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # No client comes again with a session of an earlier stream.
        context.num_tickets = 0
        context.load_cert_chain(self._cert, self._key)
        if self._client_ca:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
