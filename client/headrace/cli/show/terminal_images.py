"""Images in terminals that can show them: by kitty's graphics protocol, and by iTerm2's.

Sources: https://sw.kovidgoyal.net/kitty/graphics-protocol/ and
https://iterm2.com/documentation-images.html.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Literal

Protocol = Literal["kitty", "iterm"]

_CHUNK = 4096
_ROWS = 8


def image_protocol(environment: Mapping[str, str], *, is_terminal: bool) -> Protocol | None:
    """Return how the terminal takes images, or None if it takes none, or nobody knows.

    Args:
        environment: The environment of this process. A terminal is not asked: one that knows no
            images would show the question.
        is_terminal: Whether the output is one.
    """
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    # These pass images on only where they are told to.
    is_inside = "TMUX" in environment or term.startswith(("screen", "tmux"))
    if not is_terminal or is_inside or term in ("", "dumb"):
        return None
    if term in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environment:
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm"
    return "kitty" if program == "ghostty" else None


def sequence(png: bytes, protocol: Protocol) -> str:
    """Return what makes a terminal show an image, eight lines high, and continue below it.

    Args:
        png: Drawn by us: nothing of a dataset is in it but pixels.
        protocol: The terminal's.
    """
    if protocol == "iterm":
        content = base64.b64encode(png).decode("ascii")
        options = f"inline=1;size={len(png)};height={_ROWS};preserveAspectRatio=1"
        return f"\x1b]1337;File={options}:{content}\x07\n"
    return "".join(_kitty(base64.b64encode(png).decode("ascii"))) + "\n"


def _kitty(content: str) -> Iterator[str]:
    # q=2: no answer, which the shell would take for typing.
    options = f"a=T,f=100,q=2,r={_ROWS},"
    for begin in range(0, len(content), _CHUNK):
        more = int(begin + _CHUNK < len(content))
        yield f"\x1b_G{options}m={more};{content[begin : begin + _CHUNK]}\x1b\\"
        options = ""
