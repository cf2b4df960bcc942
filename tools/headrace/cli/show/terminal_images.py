"""Show images in terminals with the graphics protocol of kitty or iTerm2.

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
    """Return the terminal's image protocol, or None if it has none or is unknown.

    Args:
        environment: The environment of this process. The terminal itself is not queried, since one
            without images would print the query.
        is_terminal: Whether the output is a terminal.
    """
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    # Terminal multiplexers pass images on only if configured to.
    is_multiplexed = "TMUX" in environment or term.startswith(("screen", "tmux"))
    if not is_terminal or is_multiplexed or term in ("", "dumb"):
        return None
    if term in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environment:
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm"
    return "kitty" if program == "ghostty" else None


def sequence(png: bytes, protocol: Protocol) -> str:
    """Return the escape sequence that shows an image in eight lines and moves below it.

    Args:
        png: A PNG that we drew. It contains nothing from a dataset except pixels.
        protocol: The terminal's protocol.
    """
    if protocol == "iterm":
        content = base64.b64encode(png).decode("ascii")
        options = f"inline=1;size={len(png)};height={_ROWS};preserveAspectRatio=1"
        return f"\x1b]1337;File={options}:{content}\x07\n"
    return "".join(_kitty(base64.b64encode(png).decode("ascii"))) + "\n"


def _kitty(content: str) -> Iterator[str]:
    # q=2: no answer, which the shell would read as input.
    options = f"a=T,f=100,q=2,r={_ROWS},"
    for start in range(0, len(content), _CHUNK):
        more = int(start + _CHUNK < len(content))
        yield f"\x1b_G{options}m={more};{content[start : start + _CHUNK]}\x1b\\"
        options = ""
