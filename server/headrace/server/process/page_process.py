"""Run the page of a server as a separate process, connected by a private socket.

Contract:

1. The page is only told what it asks for, and is answered at most once per `_PAUSE_S`.
2. It lasts until the server has drained, and ends when the server does, for any reason, because
   its socket closes. It keeps nothing, so it is killed, and takes no time from the server's end.
3. A page that ends unexpectedly is restarted, with longer pauses each time; streams are not
    affected.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Final

from headrace.errors import ConfigurationError
from headrace.server.settings.config_layers import ConfigSource
from headrace.server.settings.server_config import ServerConfig, split_address
from headrace.server.telemetry.status import Status

_PAUSE_S: Final = 0.5
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_END_S: Final = 2.0
_MOST_QUESTION_BYTES: Final = 64
_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")

_log = logging.getLogger(__name__)


def check_page(config: ServerConfig) -> None:
    """Check that the page can be run here, if the settings include one.

    Raises:
        ConfigurationError: A package is missing, or the address cannot be listened on.
    """
    if not config.page:
        return
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"the page needs {', '.join(missing)}, not installed here; install it with pip install "
            "'headrace[page]', or serve without --page"
        )
    _check_free(config.page)


def _check_free(address: str) -> None:
    """Refuse an address that the page could never have, before it is tried again and again."""
    host, port = split_address(address)
    try:
        (family, _, _, _, place), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise ConfigurationError(
            f"the page cannot listen on {address} ({error.strerror or error}); stop what listens "
            "there, give another --page HOST:PORT, or serve without --page",
            address=address,
        ) from error


@contextmanager
def running_page(
    config: ServerConfig, source: ConfigSource | None, status: Callable[[], Status]
) -> Iterator[None]:
    """Run the page of a server while the context lasts, if the settings include one.

    Args:
        config: The server's settings.
        source: Where the settings are read again from.
        status: Returns the server's current state.
    """
    if not config.page:
        yield
        return
    page = _Page(config, source, status)
    page.start()
    try:
        yield
    finally:
        page.close()


class _Page:
    """Keep a page running, from one thread."""

    def __init__(
        self, config: ServerConfig, source: ConfigSource | None, status: Callable[[], Status]
    ) -> None:
        self._config = config
        self._source = source
        self._status = status
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="headrace-page", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        with self._lock:
            if self._process is not None:
                self._process.kill()
        self._thread.join(2 * _END_S)

    def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ending.is_set():
            try:
                code = self._run()
            except OSError:
                _log.exception("the page cannot be started; trying again in %.0f s", pause_s)
            else:
                if not self._ending.is_set():
                    _log.error("the page ended with %d; starting it again in %.0f s", code, pause_s)
            self._ending.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _run(self) -> int:
        """Run one process to its end; return its exit code."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - a part of this program
                [sys.executable, "-m", "headrace.page", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is meant for the server, which then ends the page.
                start_new_session=True,
            )
        with self._lock:
            self._process = process
            if self._ending.is_set():
                process.kill()
        with Connection(ours.detach()) as connection, suppress(EOFError, OSError):
            connection.send((self._config, self._source))
            self._answer(connection)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        process.kill()
        code = process.wait()
        with self._lock:
            self._process = None
        return code

    def _answer(self, connection: Connection) -> None:
        """Answer questions until the page ends; they are bytes, and nothing is unpickled."""
        while not self._ending.is_set():
            told = connection.recv_bytes(_MOST_QUESTION_BYTES).decode("ascii", "replace")
            if told.startswith("http"):
                _log.info("the page is at %s", told)
                continue
            connection.send_bytes(json.dumps(self._status()).encode())
            self._ending.wait(_PAUSE_S)
