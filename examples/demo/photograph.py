"""Kill three ranks, let two go on, and run a browser once a live page shows it.

``python -m demo.photograph ADDRESS BROWSER OPTION... URL``. A page has no rates in a stream's first
ten seconds, so an early picture would be empty. After a minute it is taken anyway.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

_BEFORE_S = 25.0
_WAIT_S = 60.0
_AFTER = 2
"""Points of a line after the mark, so that it is seen to go on."""


def shows_kill(text: str) -> bool:
    """Return whether a live page has a chart that goes on after a change of ranks."""
    found = re.search("data-chart='(.*?)'", text)
    if found is None:
        return False
    chart = json.loads(html.unescape(found[1]))
    kills = [at for at, _, what in chart["marks"] if what.startswith("rescaled")]
    after = [
        [value for at, value in zip(chart["times"], line["values"], strict=True) if at > kills[-1]]
        for line in (chart["lines"] if kills else ())
    ]
    return any(sum(value is not None for value in values) >= _AFTER for values in after)


def main(address: str, *command: str) -> int:
    """Run the browser in time, and return its exit code."""
    with _ranks(address, 3):
        time.sleep(_BEFORE_S)
    with _ranks(address, 2):
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline and not shows_kill(_page(command[-1])):
            time.sleep(0.5)
        return subprocess.run(command, check=False, timeout=_WAIT_S).returncode


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
