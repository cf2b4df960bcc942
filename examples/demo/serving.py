"""The headrace server of the demo: `headrace serve`, killed and started again on one port."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from demo.processes import Child, Processes, ProcessFailedError, kill

_START_TIMEOUT_S = 60.0
_PICTURE_TIMEOUT_S = 180.0
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Server:
    """A server process and its successors, all at the same address."""

    def __init__(
        self, processes: Processes, datasets: Mapping[str, str], *, picture: Path | None = None
    ) -> None:
        """Start the first one and wait until it is ready.

        Args:
            processes: Owns the server.
            datasets: URL of each dataset by the name under which it is served.
            picture: Where `photograph` leaves its picture; None for none.

        Raises:
            ProcessFailedError: It did not come up.
        """
        self._processes = processes
        self._datasets = dict(datasets)
        self._starts = self._pictures = 0
        self._picture = picture
        self._photographer: Child | None = None
        self._page = "" if picture is None else _page_address()
        self._child = self._start("127.0.0.1:0")
        self.address = self._wait_until_ready()

    def kill_and_replace(self) -> None:
        """SIGKILL the server and start another; do not wait for it, clients will."""
        kill(self._child)
        self._child = self._start(self.address)

    def stop(self) -> None:
        """Let it drain and end."""
        self._child.stop()

    def _start(self, listen: str) -> Child:
        self._starts += 1
        named = [f"{name}={url}" for name, url in self._datasets.items()]
        return self._processes.start(
            f"server-{self._starts}",
            [headrace_program(), "serve", *named, "--listen", listen, "--json", *self._options()],
        )

    def _options(self) -> list[str]:
        return ["--page", self._page] if self._page else []

    def photograph(self) -> None:
        """Have a browser take a picture of the live page once it shows lost ranks; do not wait.

        They are those of a job with long steps: epochs of the trainings take a second or two, and
        a page wants ten to know a stream's rate.
        Without a browser, or the packages of a page, there is none.
        """
        browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
        if browser is None or self._picture is None or not self._page:
            return
        self._pictures += 1
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            f"--user-data-dir={tempfile.gettempdir()}/browser-{self._pictures}",
            *("--window-size=1280,1000", f"--screenshot={self._picture}"),
            f"http://{self._page}/live",
        ]
        self._photographer = self._processes.start(
            f"browser-{self._pictures}",
            [sys.executable, "-m", "demo.photograph", self.address, *command],
        )

    def wait_for_picture(self) -> None:
        """Wait until the last picture is taken, or three minutes."""
        if self._photographer is not None:
            with suppress(ProcessFailedError):
                self._photographer.wait(time.monotonic() + _PICTURE_TIMEOUT_S)

    def _wait_until_ready(self) -> str:
        line = self._child.read_line(time.monotonic() + _START_TIMEOUT_S)
        if line is None:
            raise ProcessFailedError(f"headrace serve did not start; {self._child.last_words()}")
        return str(json.loads(line)["address"])


def _page_address() -> str:
    """Return where a page can listen; an empty text without the packages that it needs."""
    if importlib.util.find_spec("starlette") is None:
        return ""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def headrace_program() -> str:
    """Return the path of the command.

    Raises:
        ProcessFailedError: There is none.
    """
    beside_python = Path(sys.executable).parent / "headrace"
    found = str(beside_python) if beside_python.exists() else shutil.which("headrace")
    if found is None:
        raise ProcessFailedError("found no program 'headrace': pip install 'headrace[demo]'")
    return found
