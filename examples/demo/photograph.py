"""Kill three ranks, let two go on, and run a browser once a live page shows it.

``python -m demo.photograph ADDRESS BROWSER OPTION... URL``. A page has no rates in a stream's first
ten seconds, so an early picture would be empty. After two minutes it is taken anyway.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.request import urlopen

_WAIT_S = 60.0
_SEEN = 3
"""Points of a line, so that it is seen."""


def points(text: str) -> tuple[int, int]:
    """Return how many points of flights a live page has before a change of ranks, and after it."""
    found = re.search("data-chart='(.*?)'", text)
    if found is None:
        return 0, 0
    chart = json.loads(html.unescape(found[1]))
    kills = [at for at, _, _, kind in chart["marks"] if kind == "rescale"]
    known = [
        at
        for line in chart["lines"]
        if line["name"].startswith("flights")
        for at, value in zip(chart["times"], line["values"], strict=True)
        if value is not None
    ]
    after = sum(at > kills[-1] for at in known) if kills else 0
    return len(known) - after, after


def main(address: str, *command: str) -> int:
    """Run the browser in time, and return its exit code."""
    url = command[-1]
    with _ranks(address, 3):
        _wait(lambda: points(_page(url))[0] >= _SEEN)
    with _ranks(address, 2):
        _wait(lambda: points(_page(url))[1] >= _SEEN)
        return subprocess.run(command, check=False, timeout=_WAIT_S).returncode


def _wait(is_seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline and not is_seen():
        time.sleep(0.5)


@contextmanager
def _ranks(address: str, count: int) -> Iterator[None]:
    """Run slow ranks, and kill them at the end."""
    command = [sys.executable, "-m", "demo.slow_rank", address]
    ranks = [subprocess.Popen([*command, str(rank), str(count)]) for rank in range(count)]
    try:
        yield
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _page(url: str) -> str:
    try:
        with urlopen(url, timeout=5) as answer:  # noqa: S310 - of our own server
            return str(answer.read().decode())
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
