"""Warn about settings that leave a server open, or of little use."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from headrace.server.settings.server_config import ServerConfig, is_reached
from headrace.storage import DEFAULT_BLOCK_BYTES


def start_warnings(config: ServerConfig) -> list[str]:
    """Return a sentence for each setting that is allowed but rarely intended; without secrets.

    Names are not resolved: a host that is neither an address nor ``localhost`` counts as reachable
    by others.
    """
    return [*_of_addresses(config), *_of_files(config), *_of_cache(config)]


def _of_addresses(config: ServerConfig) -> Iterator[str]:
    if config.page and is_reached(config.page) and not config.tls_cert:
        yield (
            f"anyone on the network path to the page at {config.page} can read tokens and samples: "
            "there is no TLS; give --tls-cert and --tls-key, or use a tunnel"
        )
    reached = ", ".join(filter(is_reached, config.addresses))
    if not reached:
        return
    if not config.tokens and not config.tls_client_ca:
        yield (
            f"anyone who can reach {reached} may read every dataset: there are neither tokens nor "
            "client certificates; give --tokens or --tls-client-ca, or listen on 127.0.0.1 or a "
            "unix socket"
        )
    if config.tokens and not config.tls_cert:
        yield (
            f"tokens are sent to {reached} in clear text: there is no TLS; give --tls-cert and "
            "--tls-key, or make sure that a mesh encrypts the whole path"
        )


def _of_files(config: ServerConfig) -> Iterator[str]:
    for path, what in ((config.tokens, "file of tokens"), (config.tls_key, "private key")):
        try:
            mode = Path(path).stat().st_mode if path else 0
        except OSError:
            # The code that reads it reports the error.
            continue
        if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            yield (
                f"other users can read or change the {what} {path}, whose mode is "
                f"{stat.S_IMODE(mode):04o}; restrict it with chmod o=,g-w"
            )


def _of_cache(config: ServerConfig) -> Iterator[str]:
    if config.cache_bytes < DEFAULT_BLOCK_BYTES:
        yield (
            f"cache_bytes is {config.cache_bytes}, less than one block of the usual size of 1 MiB, "
            "and streams fail whose blocks do not fit; each job needs what it shuffles together, "
            "by default 2 GiB"
        )
