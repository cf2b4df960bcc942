"""Serve the page of a server, which runs this as `python -m headrace.page FD`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection

from headrace.errors import HeadraceError
from headrace.page.listen import serve_page
from headrace.page.live.watch import Watch
from headrace.page.settings import PageSettings
from headrace.server import DatasetConfig, ServerConfig, start_logging
from headrace.server.process.reload import Reloader
from headrace.server.stages.texts import TextSettings

_log = logging.getLogger("headrace.page")  # this module is called __main__


def main(fd: int) -> int:
    """Serve the page until the server ends, and return the exit code."""
    try:
        _serve(fd)
    except HeadraceError as error:
        _log.error("%s", error)
        return 1
    return 0


def _serve(fd: int) -> None:
    connection = Connection(fd)
    config, source = connection.recv()
    start_logging(config.log_level, config.log_format)
    datasets: list[Mapping[str, DatasetConfig]] = [config.dataset_configs]

    def apply(changed: ServerConfig) -> bool:
        datasets[0] = changed.dataset_configs
        return True

    # The socket closes when the server ends for any reason.
    watch = Watch(connection, on_end=lambda: os.kill(os.getpid(), signal.SIGTERM))
    with ExitStack() as stack:
        if source is not None:
            stack.enter_context(Reloader(source, apply))
        watch.start()
        serve_page(
            settings_of(config),
            configs=lambda: datasets[0],
            on_ready=watch.send_url,
            watch=watch,
            serves=config.listen[0],
        )


def settings_of(config: ServerConfig) -> PageSettings:
    """Return the settings of a server's page."""
    return PageSettings(
        listen=config.page,
        page_hosts=config.page_hosts,
        tokens=config.tokens,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        tokenizers=config.of_plug(TextSettings).tokenizers,
        request_s=config.request_timeout_s,
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
