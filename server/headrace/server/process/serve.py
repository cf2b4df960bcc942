"""Serve in this process until a signal ends it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import FrameType

from headrace.server.process.forced_end import end_by
from headrace.server.process.page_process import check_page, running_page
from headrace.server.process.reload import Reloader
from headrace.server.process.start_warnings import start_warnings
from headrace.server.rpc.server import start_server
from headrace.server.settings.config_layers import ConfigSource
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.stage_plugs import check_stages
from headrace.server.telemetry.logs import event
from headrace.server.workers.supervisor import start_supervisor

_Handler = Callable[[int, FrameType | None], None]

_LOOK_S = 0.5
"""How late a signal may be noticed that was delivered to another thread."""

_log = logging.getLogger(__name__)


def serve(
    config: ServerConfig,
    *,
    on_ready: Callable[[str], None],
    source: ConfigSource | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends the process at once.

    In any case the process ends within 2 s of its drain.

    Must be called in the main thread. Before it is ready there is nothing to drain, and a store
    that does not answer may delay it for minutes, so a signal ends it at once.

    Args:
        config: The settings.
        on_ready: Called once with the addresses, joined by spaces, when clients may connect.
        source: Where the settings come from; they are read again on SIGHUP and when the file
            changes.

    Returns:
        The exit code of the process: 0.

    Raises:
        ConfigurationError: A transform or the page cannot be used, or `start_server` raised it.
        HeadraceError: `start_server` raised it.
        KeyboardInterrupt: SIGTERM or SIGINT arrived before the server was ready.
    """
    # A queue, since the code that a handler interrupts may hold an event's lock.
    asked: SimpleQueue[int] = SimpleQueue()
    is_serving = threading.Event()

    def ask(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if not is_serving.is_set():
            raise KeyboardInterrupt
        asked.put(number)

    def wait(addresses: tuple[str, ...]) -> None:
        is_serving.set()
        on_ready(" ".join(addresses))
        _wait_for(asked)
        _log.info("asked to end; draining for at most %g s", config.drain_s)
        end_by(config.drain_s)

    # Here, not in the server, since each worker is a server; so are stages checked.
    for text in start_warnings(config):
        _log.warning("%s", text)
    with _handled({signal.SIGTERM: ask, signal.SIGINT: ask}):
        check_page(config)
        list(check_stages(config))
        if config.workers:
            _serve_workers(config, source, wait)
        else:
            _serve_alone(config, source, wait)
    return 0


def _wait_for(asked: SimpleQueue[int]) -> None:
    """Wait for a signal, including one delivered to another thread, which does not wake this one.

    Python runs handlers in the main thread, the next time that it runs.
    """
    while True:
        with suppress(Empty):
            asked.get(timeout=_LOOK_S)
            return


def _serve_alone(
    config: ServerConfig, source: ConfigSource | None, wait: Callable[[tuple[str, ...]], None]
) -> None:
    # The page shows the drain, too.
    with (
        start_server(config) as server,
        running_page(replace(config, listen=server.addresses), source, server.status),
    ):
        with ExitStack() as stack:
            if source is not None:
                reloader = stack.enter_context(Reloader(source, server.reload))
                stack.enter_context(_handled({signal.SIGHUP: lambda *_: reloader.request()}))
            _log.info("serving", extra=event(**server.described))
            wait(server.addresses)
        server.drain()


def _serve_workers(
    config: ServerConfig, source: ConfigSource | None, wait: Callable[[tuple[str, ...]], None]
) -> None:
    with (
        start_supervisor(config, source=source) as supervisor,
        running_page(replace(config, listen=supervisor.addresses), source, supervisor.status),
    ):
        with _handled({signal.SIGHUP: lambda *_: supervisor.reload()} if source else {}):
            wait(supervisor.addresses)
        supervisor.drain()


@contextmanager
def _handled(handlers: Mapping[signal.Signals, _Handler]) -> Iterator[None]:
    """Handle signals while the context lasts."""
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
