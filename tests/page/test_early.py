"""A browser gets the head of a page while its data is read, and then the rest or an error.

A program, and a script of the page, gets one answer with its status.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, StoreUnavailableError
from headrace.page.app import VIEW_MARK
from headrace.page.guard.middleware import HEADERS
from headrace.page.views import VIEWS
from support.datasets import small_table, write_dataset
from support.paged import TIMEOUT_S, Paged, paged, write_tokens
from support.waiting import until

_BROWSER = {"sec-fetch-dest": "document"}


@dataclass
class Gate:
    """Keeps views from their data until it opens."""

    opened: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def __call__(self) -> None:
        """Wait until it opens."""
        assert self.opened.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Keep views waiting until the test opens it, at the latest when it ends."""
    made = Gate()
    yield made
    made.opened.set()


@contextmanager
def _gated(folder: Path, gate: Gate, **options: Path) -> Iterator[Paged]:
    write_dataset(str(folder / "red"), small_table(100), shard_samples=[100])
    with paged({"red": str(folder / "red")}, before=gate, **options) as page:  # type: ignore[arg-type]
        yield page
        gate.opened.set()


@contextmanager
def _browsing(page: Paged, target: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(*page.address, timeout=TIMEOUT_S)
    connection.request("GET", target, headers=_BROWSER)
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def _head(answer: http.client.HTTPResponse) -> str:
    """Read until the head is here, and no further."""
    found = b""
    while VIEW_MARK.encode() not in found:
        found += answer.read1()
    return found.decode()


def _view(text: str) -> str:
    return text.partition(VIEW_MARK)[2]


PAGES = [
    path.format(name="red", number="0", id="7") for path, (_, place, _) in VIEWS.items() if place
]


@pytest.mark.parametrize("target", [one for one in PAGES if one.startswith("/d/")])
def test_the_head_comes_before_the_data_is_read(tmp_path: Path, gate: Gate, target: str) -> None:
    """It has the name, the tabs and the policy; what follows is what others get at once."""
    with _gated(tmp_path, gate) as page, _browsing(page, target) as answer:
        head = _head(answer)

        assert not gate.opened.is_set()
        assert {*HEADERS} <= {name.lower() for name in answer.headers}
        assert ">red<" in head
        assert 'aria-label="Dataset"' in head
        assert "Reading" in _view(head)
        gate.opened.set()
        rest = answer.read().decode()
        whole = page.ask(target)
        assert 200 == whole.status
        # A link to random samples is another one each time.
        assert _view(whole.text).partition("random=")[0] == rest.partition("random=")[0]
        assert 1 == (head + rest).count("<h1")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            StoreUnavailableError("the store does not answer", store="x"),
            "the store does not answer",
        ),
        (RuntimeError("inside"), "This is a bug in headrace"),
    ],
)
def test_an_error_after_the_head_is_told_in_a_whole_page(
    tmp_path: Path, gate: Gate, error: Exception, text: str
) -> None:
    """It stands where the view would, once, and nothing of the inside with it."""
    gate.error = error
    with _gated(tmp_path, gate) as page, _browsing(page, "/d/red/samples") as answer:
        head = _head(answer)
        gate.opened.set()
        rest = answer.read().decode()

        assert 200 == answer.status
        assert text in rest
        assert 'role="alert"' in rest
        assert rest.rstrip().endswith("</html>")
        assert 1 == (head + rest).count("<h1")
        assert "inside" not in rest
        # Whoever asks for the whole answer is told by its status, too.
        told = 503 if isinstance(error, HeadraceError) else 500
        assert told == page.ask("/d/red/samples").status


@pytest.mark.parametrize(("target", "status"), [("/d/none", 404), ("/nowhere", 404), ("/", 200)])
def test_what_is_known_at_once_has_its_status(
    tmp_path: Path, gate: Gate, target: str, status: int
) -> None:
    """A browser is told that a dataset does not exist as a program is."""
    gate.opened.set()
    with _gated(tmp_path, gate) as page:
        # On a machine that is busy with other things, an answer may come late.
        assert until(lambda: page.ask(target, headers=_BROWSER).status == status)


def test_a_name_with_the_mark_in_it_is_text(tmp_path: Path, gate: Gate) -> None:
    """It cannot make a part of the page its beginning."""
    with (
        _gated(tmp_path, gate) as page,
        _browsing(page, "/d/%3C!--view--%3E%3Cscript%3E") as answer,
    ):
        head = _head(answer)
        gate.opened.set()

        assert "&lt;!--view--&gt;" in head
        assert 1 == (head + answer.read().decode()).count(VIEW_MARK)


def test_whoever_has_not_logged_in_gets_no_head(tmp_path: Path, gate: Gate) -> None:
    """The form, at once, with its status."""
    tokens = write_tokens(tmp_path / "tokens.json", {"anna": ["red"]})
    with _gated(tmp_path, gate, tokens=tokens) as page:
        answer = page.ask("/d/red", headers=_BROWSER)

        assert 401 == answer.status
        assert ">red<" not in answer.text


def test_a_browser_that_leaves_while_it_waits_leaves_no_trace(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """The view ends by itself, and the page goes on."""
    with _gated(tmp_path, gate) as page:
        for _ in range(20):
            with _browsing(page, "/d/red") as answer:
                _head(answer)
        gate.opened.set()

        assert 200 == page.ask("/d/red").status
    assert [] == [line for line in caplog.records if line.levelname in {"ERROR", "CRITICAL"}]


@pytest.mark.parametrize("target", ["/d/red/preview", "/d/red/columns", "/d/red/file/0/0"])
def test_a_part_of_a_page_is_never_sent_in_parts(tmp_path: Path, gate: Gate, target: str) -> None:
    """A file that is opened on its own has no head."""
    gate.opened.set()
    with _gated(tmp_path, gate) as page:
        assert "Reading" not in page.ask(target, headers=_BROWSER).text
