"""Wait until a live page shows that ranks were killed and others went on, and then run a browser.

``python -m demo.photograph BROWSER OPTION... URL``. A server's page draws what it has seen for ten
seconds, so a picture of its first ones would be empty. After half a minute it is taken anyway.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from urllib.request import urlopen

_WAIT_S = 30.0
_AFTER_S = 15
"""Seconds of the chart after the mark, so that the line is seen to go on."""


def shows_kill(text: str) -> bool:
    """Return whether a live page has a chart that goes on after a change of ranks."""
    found = re.search("data-chart='(.*?)'", text)
    if found is None:
        return False
    chart = json.loads(html.unescape(found[1]))
    kills = [at for at, what in chart["marks"] if what.startswith("rescaled")]
    return bool(kills) and chart["times"][-1] >= kills[-1] + _AFTER_S


def main(command: Sequence[str]) -> int:
    """Run the browser in time, and return its exit code."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline and not shows_kill(_page(command[-1])):
        time.sleep(0.5)
    return subprocess.run(command, check=False, timeout=_WAIT_S).returncode


def _page(url: str) -> str:
    try:
        with urlopen(url, timeout=5) as answer:  # noqa: S310 - of our own server
            return str(answer.read().decode())
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
