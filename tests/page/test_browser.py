"""The page in a real Chromium: views that a person can use, and samples that run nothing.

Where no Chromium is installed these tests are skipped; Debian has one (`apt-get install chromium`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.client import NumpyDataset
from support.datasets import small_table, write_dataset
from support.page_samples import NAME, hostile_table, shapes_table
from support.paged import Paged, paged, served_page, write_tokens

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="there is no Chromium here: apt-get install chromium"
)
playwright_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run one Chromium for the module."""
    with playwright_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-quic", "--disable-gpu"]
        )
        yield running
        running.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paged]:
    """Show samples that are nice to look at, and some that are not."""
    folder = tmp_path_factory.mktemp("shown")
    write_dataset(str(folder / "shapes"), shapes_table(300), shard_samples=[150, 150])
    write_dataset(str(folder / "hostile"), hostile_table(), shard_samples=[7])
    urls = {name: str(folder / name) for name in ("shapes", "hostile")}
    with paged(urls) as running:
        yield running


@pytest.fixture
def tab(browser: Browser, shown: Paged) -> Iterator[Page]:
    """Open a tab that fails the test at an error of a script, and at a request to anywhere else."""
    context = browser.new_context(viewport={"width": 1100, "height": 700})
    page = context.new_page()
    page.set_default_timeout(30_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("console", lambda line: wrong.append(line.text) if _is_refusal(page, line) else None)
    page.on(
        "request",
        lambda sent: None if sent.url.startswith(shown.url) else wrong.append(sent.url),
    )
    yield page
    context.close()
    assert [] == wrong


def _is_refusal(page: Page, line: ConsoleMessage) -> bool:
    """Say whether the policy stopped something; what Chromium adds to a bare file is left out."""
    return "Content Security Policy" in line.text and "/file/" not in page.url


AXE = "axe-core@4.14.1"
_VIOLATIONS = """() => axe.run(document).then(({ violations }) => violations.map(
  one => `${one.id}: ${one.nodes.map(node => node.html.slice(0, 200)).join("; ")}`))"""

VIEWS = (
    "/",
    "/d/shapes",
    "/d/shapes/samples",
    "/d/shapes/sample/7",
    "/d/shapes/column/1",
    "/d/shapes/versions",
    "/d/shapes/order?label=label",
    "/d/shapes/batch?batch=64&ranks=4",
    "/run",
    "/nowhere",
)
HOSTILE = (
    "",
    "/samples",
    "/sample/0",
    "/sample/1",
    "/sample/2",
    "/column/0",
    "/column/3",
    "/order",
)


def test_samples_are_seen_and_walked_through_by_keys(tab: Page, shown: Paged) -> None:
    """Images load, masks and boxes lie over them, and keys lead from view to view."""
    tab.goto(f"{shown.url}/d/shapes/samples?n=12")
    tab.wait_for_load_state("networkidle")
    loaded = """() => [...document.images]
        .filter(image => image.loading !== 'lazy' || image.complete)
        .every(image => image.naturalWidth > 0)"""
    assert tab.evaluate(loaded)
    assert tab.locator("#samples tr").count() >= 12
    assert tab.locator("#samples svg rect").count() >= 12
    tab.locator("#samples .picture").first.click()
    tab.keyboard.press("ArrowRight")
    tab.locator("#box button", has_text="Next").click()
    assert "sample 1:" in tab.locator("#box p").inner_text()
    tab.keyboard.press("Escape")
    assert not tab.locator("#box").is_visible()

    tab.goto(f"{shown.url}/d/shapes/sample/7")
    tab.keyboard.press("n")
    tab.wait_for_url("**/sample/8?*")
    tab.keyboard.press("p")
    tab.wait_for_url("**/sample/7?*")
    tab.keyboard.press("g")
    tab.keyboard.press("d")
    tab.wait_for_url(f"{shown.url}/")
    tab.keyboard.press("?")
    assert tab.locator("#keys").is_visible()
    # Images that are none leave their place.
    tab.wait_for_function("() => document.querySelectorAll('.thumbs img').length === 4")


def test_hostile_samples_run_no_script(tab: Page, shown: Paged) -> None:
    """No title changes, no dialog opens, nobody is asked, and the policy has nothing to stop."""
    for what in HOSTILE:
        answer = tab.goto(f"{shown.url}/d/hostile{what}")
        assert answer is not None
        tab.wait_for_load_state("networkidle")

        assert tab.title().endswith("headrace"), what
        assert 1 == tab.locator("script").count()
    # A file opened on its own is not a page either.
    for number in range(7):
        answer = tab.goto(f"{shown.url}/d/hostile/file/{number}/1")
        assert answer is not None
        assert "" == tab.title() or tab.title().startswith("1 "), tab.title()
        assert 0 == tab.locator("script").count()


def test_names_do_not_turn_the_page_around(tab: Page, shown: Paged) -> None:
    """A name with an override stands spelled out, and what follows it reads from left to right."""
    tab.goto(f"{shown.url}/d/hostile")

    cell = tab.locator(".column h3", has_text='a"b').first
    assert "\\u202e" in cell.inner_text()
    assert "\u202e" not in tab.content()
    assert NAME not in tab.content()


def test_forms_are_sent_by_a_browser(browser: Browser, tmp_path: Path) -> None:
    """One logs in with a token, not with another one, looks at a run, and logs out."""
    write_dataset(str(tmp_path / "red"), small_table(100), shard_samples=[100])
    tokens = write_tokens(tmp_path / "tokens.json", {"anna": ["red"]})
    with paged({"red": str(tmp_path / "red")}, tokens=tokens) as page, browser.new_context() as own:
        tab = own.new_page()
        tab.goto(f"{page.url}/d/red")
        for token in ("bert" * 16, "anna" * 16):
            tab.fill("input[name=token]", token)
            tab.click("button.main")
        tab.wait_for_url("**/d/red")
        assert tab.locator("h1").inner_text() == "red"

        tab.goto(f"{page.url}/run")
        tab.fill("#one", "???")
        tab.click("text=Show")
        assert "are not a token" in tab.locator("[role=alert]").inner_text()

        tab.click("text=Log out")
        tab.wait_for_url("**/login")
        tab.goto(f"{page.url}/d/red")
        assert tab.locator("input[name=token]").is_visible()


def test_a_long_text_opens_in_place_whole(browser: Browser, tmp_path: Path) -> None:
    """By a click or a key, as far as a page shows texts at all."""
    texts = [f"{number} " + "word " * 2000 + "end" for number in range(3)]
    write_dataset(str(tmp_path), pa.table({"x": [1, 2, 3], "body": texts}), shard_samples=[3])
    with paged({"texts": str(tmp_path)}) as page, browser.new_context() as own:
        tab = own.new_page()
        tab.goto(f"{page.url}/d/texts/samples")
        cell = tab.locator("#samples tr").nth(1).locator("td").nth(1)
        assert "end" not in cell.inner_text()
        width = "document.querySelector('.samples').scrollWidth"
        before = tab.evaluate(width)
        tab.locator("#samples tr").nth(1).evaluate("row => row.focus()")
        tab.keyboard.press("x")
        tab.wait_for_function("() => document.body.textContent.includes('1 word word')")
        tab.wait_for_function("() => /word end/.test(document.body.textContent)")
        assert cell.inner_text().strip() == texts[1]
        tab.locator("#samples tr").nth(1).locator("td").nth(0).click()
        assert ["1"] == tab.locator("td.open").evaluate_all("all => all.map(e => e.dataset.column)")
        assert before == tab.evaluate(width)


def test_a_filter_takes_by_keys_what_was_chosen_and_nothing_else(tab: Page, shown: Paged) -> None:
    """Tab walks through an empty field, arrows choose in both directions, and carets move."""
    tab.goto(f"{shown.url}/d/shapes/samples?n=3")
    field, offers = tab.locator("#where"), tab.locator("#offers li")
    tab.keyboard.press("/")
    assert offers.first.is_visible()
    tab.keyboard.press("Tab")
    assert ("", 0) == (field.input_value(), offers.count())
    for keys, text in (
        ("/ ArrowUp Enter", "weight "),
        ("/ ArrowDown ArrowUp Tab", "weight "),
        ("/ c a Tab", "caption "),
        ("/ c a Home Tab", "ca"),
    ):
        field.evaluate("field => { field.value = ''; document.activeElement.blur(); }")
        for key in keys.split():
            tab.keyboard.press(key)
        assert text == field.input_value(), keys
    tab.locator("summary", has_text="Columns").click()
    tab.locator(".menu[open] input").first.focus()
    tab.keyboard.press("Escape")
    assert 0 == tab.locator(".menu[open]").count()


@pytest.mark.parametrize("width", [360, 1100])
def test_pinned_columns_keep_their_heads(tab: Page, shown: Paged, width: int) -> None:
    """However many are pinned, heads stay at the top; one column at least stays at the left."""
    tab.set_viewport_size({"width": width, "height": 700})
    tab.goto(f"{shown.url}/d/shapes/samples?p1=on&p4=on&p6=on")
    tab.locator(".tall").evaluate("tall => tall.scrollTo(150, 300)")
    places = tab.locator("thead th").evaluate_all(
        """all => all.map(e => [e.getBoundingClientRect().left, e.getBoundingClientRect().top]
          .map((at, axis) => at - e.closest('.tall').getBoundingClientRect()[axis ? 'y' : 'x']))"""
    )
    assert {1} == {round(top) for _, top in places}
    assert [1, 73] == [round(left) for left, _ in places[:2]]


def test_what_stands_for_a_view_goes_when_it_comes(tab: Page, shown: Paged) -> None:
    """While the data is read there is a sign of it, and then the view alone."""
    tab.goto(f"{shown.url}/d/shapes/order?label=label&seed=91")
    assert tab.locator(".wait").count() in {0, 1}
    assert not tab.locator(".wait").is_visible()
    assert 1 == tab.locator("h1").count()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1100])
def test_each_view_fits_and_is_labelled(
    tab: Page, shown: Paged, axe: str, width: int, scheme: str
) -> None:
    """No view is wider than the screen, and axe finds no barrier."""
    tab.set_viewport_size({"width": width, "height": 700})
    tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for view in VIEWS:
        tab.goto(shown.url + view)
        tab.wait_for_load_state("networkidle")
        _check_fits(tab, width, view, axe)


def _check_fits(tab: Page, width: int, view: str, axe: str) -> None:
    wide = tab.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, view
    tab.evaluate(axe)
    assert [] == tab.evaluate(_VIOLATIONS), view
    assert 1 == tab.locator("h1").count(), view
    tab.keyboard.press("Tab")
    assert "Skip" in tab.evaluate("document.activeElement.textContent"), view


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fetch what looks for barriers to people who see, hear or point less well."""
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("axe-core comes from npm, which is not here")
    found = subprocess.run([npm, "pack", AXE, "--silent"], cwd=folder, timeout=120, check=False)
    if found.returncode:
        pytest.skip(f"npm cannot fetch {AXE}")
    with tarfile.open(next(folder.glob("*.tgz"))) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1100])
def test_the_live_view_fits_and_is_labelled(
    browser: Browser, axe: str, tmp_path: Path, width: int, scheme: str
) -> None:
    """As the other views, while streams are open; and it renews itself while one looks."""
    dark = browser.new_context(
        viewport={"width": width, "height": 700},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    with served_page(tmp_path) as (server, page), dark as context:
        with NumpyDataset(server.address, "red", batch_size=10) as dataset:
            batches = iter(dataset)
            next(batches)
            tab = context.new_page()
            tab.goto(f"{page.url}/live")
            tab.wait_for_selector("table.streams tbody tr")
            _check_fits(tab, width, "/live", axe)
            # Nothing lies where one has to scroll to, such as what a stream waits for.
            right = tab.locator(".streams td, .jobs td").evaluate_all(
                "all => Math.max(...all.map((one) => one.getBoundingClientRect().right))"
            )
            assert 0 < right <= width
        # The stream is over: nobody has to load the view again to see it.
        tab.wait_for_selector("table.streams tbody tr", state="detached", timeout=30_000)


@pytest.mark.long
def test_live_says_that_it_is_old(browser: Browser, tmp_path: Path) -> None:
    """Once its server is gone, so that nobody takes an old verdict for a new one."""
    with served_page(tmp_path) as (server, page):
        tab = browser.new_page()
        tab.goto(page.url + "/live")
        assert not tab.locator("#stale").is_visible()
        server.process.terminate()
        tab.locator("#stale").wait_for(state="visible", timeout=60_000)
        assert re.fullmatch(r"[\d:]{8} UTC", tab.locator("#stale time").inner_text())
        tab.close()


@pytest.mark.long
def test_samples_are_added_as_one_scrolls(tab: Page, shown: Paged) -> None:
    """All of them come, each once, in order."""
    tab.goto(f"{shown.url}/d/shapes/samples?n=60")
    tab.wait_for_function(
        """() => {
          window.scrollTo(0, document.body.scrollHeight);
          document.querySelector('.tall').scrollTo(0, 1e6);
          return !document.querySelector('[data-more]');
        }""",
        polling=100,
    )

    names = tab.locator("#samples tr").evaluate_all("all => all.map(e => e.ariaLabel)")
    assert [f"Sample {number}" for number in range(300)] == names
