"""What an operator should know of the settings before somebody else finds out."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from headrace.server.settings.server_config import ServerConfig, is_reached


def start_warnings(config: ServerConfig) -> list[str]:
    """Return what is allowed and seldom meant, a sentence each; nothing of a secret is in them.

    No name is looked up: a host that is neither an address nor ``localhost`` counts as one that
    others reach.
    """
    return [*_of_addresses(config), *_of_files(config)]


def _of_addresses(config: ServerConfig) -> Iterator[str]:
    if config.page and is_reached(config.page) and not config.tls_cert:
        yield (
            f"whoever listens on the way to the page at {config.page} reads tokens and samples: "
            "there is no TLS; give --tls-cert and --tls-key, or come through a tunnel"
        )
    reached = ", ".join(filter(is_reached, config.addresses))
    if not reached:
        return
    if not config.tokens and not config.tls_client_ca:
        yield (
            f"whoever reaches {reached} may read every dataset: there are neither tokens nor "
            "client certificates; give --tokens or --tls-client-ca, or listen on 127.0.0.1 or a "
            "unix socket"
        )
    if config.tokens and not config.tls_cert:
        yield (
            f"tokens travel in clear text to {reached}: there is no TLS; give --tls-cert and "
            "--tls-key, or make sure that a mesh encrypts all the way"
        )


def _of_files(config: ServerConfig) -> Iterator[str]:
    for path, what in ((config.tokens, "file of tokens"), (config.tls_key, "private key")):
        try:
            mode = Path(path).stat().st_mode if path else 0
        except OSError:
            # Whoever reads it says so.
            continue
        if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            yield (
                f"others can read or change the {what} {path}, whose mode is "
                f"{stat.S_IMODE(mode):04o}; take that from them: chmod o=,g-w"
            )
