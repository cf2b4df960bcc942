"""A real page in a thread of this test, and a browser that says exactly what it is told to."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from headrace.page.app import make_app
from headrace.page.data.library import Library
from headrace.page.listen import Listener
from headrace.page.live.watch import Watch
from headrace.page.settings import PageSettings
from headrace.page.site import Site
from headrace.server import DatasetConfig
from headrace.server.access.callers import Access
from headrace.storage import Tokenizer
from support.command import Serving, serving
from support.datasets import small_table, write_dataset
from support.waiting import until

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode()


@dataclass(frozen=True, slots=True)
class Paged:
    """A page that listens."""

    url: str
    site: Site

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def ask(
        self,
        target: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """ViewRequest over a connection of its own; redirects are not followed."""
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, body, dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def login(
        self, token: str, *, to: str = "/", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send the form."""
        body = urlencode({"token": token, "to": to}).encode()
        form = {"content-type": "application/x-www-form-urlencoded", **(headers or {})}
        return self.ask("/login", method="POST", headers=form, body=body)

    def session(self, token: str) -> dict[str, str]:
        """Log in, and return the header that goes with later requests."""
        answer = self.login(token)
        assert answer.status == 303, answer.text
        return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


@contextmanager
def paged(
    urls: Mapping[str, str],
    *,
    tokens: Path | None = None,
    hosts: tuple[str, ...] = (),
    watch: Watch | None = None,
    request_s: float = 10.0,
    tls: tuple[str, str] = ("", ""),
    tokenizers: Mapping[str, Tokenizer] | None = None,
    before: Callable[[], object] = lambda: None,
) -> Iterator[Paged]:
    """Run a page of datasets on a free port.

    Args:
        urls: The datasets by name.
        tokens: The file of tokens.
        hosts: The names of the page.
        watch: Reports the state of a server.
        request_s: How long a browser may take to send a request.
        tls: A certificate and its key.
        tokenizers: They turn tokens into text.
        before: Called when a view looks for a dataset; it may wait or raise.
    """
    configs = {name: DatasetConfig(url=url) for name, url in urls.items()}

    def found() -> Mapping[str, DatasetConfig]:
        before()
        return configs

    site = Site(Library(found), Access(tokens), watch, tokenizers)
    settings = PageSettings(
        listen="127.0.0.1:0", request_s=request_s, tls_cert=tls[0], tls_key=tls[1]
    )
    listener = Listener(make_app(site, names=hosts), settings)
    thread = threading.Thread(target=listener.run, kwargs={"on_ready": lambda _: None})
    thread.start()
    try:
        yield Paged(listener.url, site)
    finally:
        listener.stop()
        thread.join(TIMEOUT_S)
        site.library.close()
        assert not thread.is_alive()


def write_tokens(
    path: Path, datasets: Mapping[str, list[str]], *, operators: Collection[str] = ()
) -> Path:
    """Write a file in which each caller's token is its name, sixteen times."""
    entries = [
        {
            "name": name,
            "token": name * 16,
            "datasets": allowed,
            "operator": name in operators,
        }
        for name, allowed in datasets.items()
    ]
    path.write_text(json.dumps({"tokens": entries}))
    return path


@contextmanager
def served_page(
    folder: Path, *options: str, names: tuple[str, ...] = ("red", "blue")
) -> Iterator[tuple[Serving, Paged]]:
    """Serve datasets with a page, and wait until it answers."""
    for name in names:
        if not (folder / name).exists():
            write_dataset(str(folder / name), small_table(2000), shard_samples=[1000, 1000])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listen = f"127.0.0.1:{port}"
    urls = {name: str(folder / name) for name in names}
    with serving(urls, "--page", listen, *options) as server:
        page = Paged(f"http://{listen}", None)  # type: ignore[arg-type]  # it runs elsewhere
        assert until(lambda: answers(page))
        yield server, page


def answers(page: Paged) -> bool:
    """Say whether a page listens."""
    try:
        return page.ask("/login").status in {200, 401}
    except OSError:
        return False
