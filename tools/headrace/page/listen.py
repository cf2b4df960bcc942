"""Serve a page until it is stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from headrace.errors import ConfigurationError
from headrace.page.app import make_app
from headrace.page.data.library import Library
from headrace.page.guard.connections import PageProtocol
from headrace.page.guard.middleware import MAX_HEAD_BYTES
from headrace.page.live.watch import Watch
from headrace.page.settings import PageSettings
from headrace.page.site import Site
from headrace.server import DatasetConfig
from headrace.server.access.callers import Access
from headrace.server.settings.server_config import split_address
from headrace.server.stages.texts.tokenizers import load_tokenizers

_MAX_CONNECTIONS: Final = 128
_KEEP_ALIVE_S: Final = 5


class Listener:
    """A listening page; `run` responds to requests.

    Args:
        app: The application.
        settings: Where to listen.

    Attributes:
        url: The page's URL.

    Raises:
        ConfigurationError: The address cannot be bound, or the certificate cannot be read.
    """

    def __init__(self, app: ASGIApp, settings: PageSettings) -> None:
        self._socket = _bound(settings.listen)
        host, port = self._socket.getsockname()[:2]
        scheme = "https" if settings.tls_cert else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=partial(PageProtocol, request_s=settings.request_s),  # type: ignore[arg-type]  # any callable will do
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_MAX_CONNECTIONS,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ssl_certfile=settings.tls_cert or None,
                ssl_keyfile=settings.tls_key or None,
            )
        )

    def run(self, *, on_ready: Callable[[str], None]) -> None:
        """Respond until `stop`, or until SIGTERM or SIGINT in the main thread.

        Args:
            on_ready: Called with the URL when the page is ready.
        """
        with closing(self._socket):
            on_ready(self.url)
            asyncio.run(self._server.serve(sockets=[self._socket]))

    def stop(self) -> None:
        """Stop within two seconds; may be called from any thread."""
        self._server.should_exit = True


def serve_page(
    settings: PageSettings,
    *,
    configs: Callable[[], Mapping[str, DatasetConfig]],
    on_ready: Callable[[str], None],
    watch: Watch | None = None,
    serves: str = "",
) -> None:
    """Serve a page in this process until SIGTERM or SIGINT; must be called in the main thread.

    Args:
        settings: The settings of the page.
        configs: Returns the datasets by name, as they are now.
        on_ready: Called with the URL when the page is ready.
        watch: Reports the server's state; None without a server.
        serves: The address at which the server serves datasets; empty without a server.

    Raises:
        ConfigurationError: The address cannot be bound, or a tokenizer cannot be loaded.
    """
    access = Access(Path(settings.tokens) if settings.tokens else None)
    site = Site(Library(configs), access, watch, load_tokenizers(settings.tokenizers), serves)
    hosts = (*settings.page_hosts.split(","), split_address(settings.listen)[0])
    names = {name.strip().lower() for name in hosts} - {""}
    with closing(site.library):
        Listener(make_app(site, names=names), settings).run(on_ready=on_ready)


def _bound(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        # Early connections wait in the kernel.
        made.listen(_MAX_CONNECTIONS)
    except OSError as error:
        made.close()
        raise ConfigurationError(
            f"the page cannot listen on {address} ({error.strerror}); choose another address, "
            "such as 127.0.0.1:0 for any free port",
            address=address,
        ) from error
    return made
