"""Take the pictures of docs/page.md, docs/page-runs.md and of the README again, in a real Chromium.

``PYTHONPATH=tests python -m page.screenshots [docs/page]``, a minute; look at each before it is
committed.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from PIL import Image
from playwright.sync_api import sync_playwright

from headrace.client import NumpyDataset, Transport
from headrace.page.runs.pasted import url_token
from page.test_browser import CHROMIUM
from support.datasets import write_dataset
from support.page_samples import shapes_table
from support.paged import served_page

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

_SAMPLES, _READERS, _LOOK_MS = 600, 6, 15_000


def main() -> int:
    """Write the pictures into a folder."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/page")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _write(folder)
        server, page = stack.enter_context(served_page(folder, names=("flights", "shapes")))
        tokens = stack.enter_context(_read(server.address))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(browser.close)
        wide = browser.new_context(viewport={"width": 1000, "height": 720})
        phone = browser.new_context(
            viewport={"width": 360, "height": 720}, color_scheme="dark", device_scale_factor=2
        )
        runs = f"one={quote(tokens[0])}&two={quote(tokens[1])}"
        versions = _versions(page.ask("/d/shapes/versions").text)
        for name, view in {
            "datasets": "/",
            "dataset": "/d/shapes",
            "samples": "/d/shapes/samples?n=12",
            "sample": "/d/shapes/sample/7",
            "column": "/d/shapes/column/1",
            "versions": f"/d/shapes/versions?old={versions[1]}&new={versions[0]}",
            "order": "/d/flights/order?label=carrier&epoch=1",
            "batch": "/d/flights/batch?batch=256&ranks=8",
            "run": f"/run?{runs}",
        }.items():
            _take(wide, page.url + view, target / f"{name}.png")
        _take(phone, f"{page.url}/d/shapes/samples?n=12", target / "phone-dark.png")
        _take(wide, f"{page.url}/live", target / "live.png", look_ms=_LOOK_MS)
    return 0


def _take(context: BrowserContext, url: str, picture: Path, *, look_ms: int = 3000) -> None:
    tab = context.new_page()
    tab.goto(url)
    tab.wait_for_load_state("load")
    tab.wait_for_timeout(look_ms)
    tab.screenshot(path=picture)
    # 256 colours take a third of the bytes, and nobody sees the difference.
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)
    sys.stdout.write(f"{picture}: {tab.title()}\n")
    tab.close()


def _write(folder: Path) -> None:
    """Write drawings in two versions, and flights that are sorted by carrier."""
    shapes = shapes_table(_SAMPLES)
    write_dataset(str(folder / "shapes"), shapes.slice(0, 300), shard_samples=[300])
    write_dataset(str(folder / "shapes"), shapes, shard_samples=[300, 300], mode="overwrite")
    random = np.random.default_rng(2)
    carriers = np.sort(random.integers(0, 12, 45_000))
    flights = pa.table(
        {
            "carrier": carriers,
            "delay": random.normal(8, 20, carriers.size),
            "legs": pa.FixedSizeListArray.from_arrays(
                pa.array(random.random(400 * carriers.size, np.float32)), 400
            ),
        }
    )
    write_dataset(str(folder / "flights"), flights, shard_samples=[15_000] * 3, block_bytes=1 << 16)


def _versions(text: str) -> list[str]:
    """Return the fingerprints of versions, the newest first."""
    found = [part.partition('"')[0] for part in text.split('name="old" value="')[1:]]
    assert 2 == len(found), found
    return found


@contextmanager
def _read(address: str) -> Iterator[list[str]]:
    """Read as ranks of two jobs do while the context lasts; give a token of two runs."""
    tokens = [_token(address, seed=1, batches=300), _token(address, seed=2, batches=200)]
    over = threading.Event()
    readers = [
        threading.Thread(target=_loop, args=(address, rank, over)) for rank in range(_READERS)
    ]
    for reader in readers:
        reader.start()
    try:
        yield tokens
    finally:
        over.set()
        for reader in readers:
            reader.join()


def _token(address: str, *, seed: int, batches: int) -> str:
    """Return the token of a run after some batches."""
    with NumpyDataset(address, "flights", batch_size=64, seed=seed) as dataset:
        rows = iter(dataset)
        for _ in range(batches):
            next(rows)
        assert dataset.token is not None
        return url_token(dataset.token)


def _loop(address: str, rank: int, over: threading.Event) -> None:
    """Read until it is over, the first ranks as slowly as a training loop, the last as it can."""
    with NumpyDataset(
        address,
        "flights",
        batch_size=64,
        rank=rank,
        world_size=_READERS,
        transport=Transport(prefetch_bytes=1 << 18),
    ) as dataset:
        while not over.is_set():
            for _ in dataset:
                if over.wait(0.25 + 0.05 * rank):
                    break


if __name__ == "__main__":
    sys.exit(main())
