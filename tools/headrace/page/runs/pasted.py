"""Parse pasted tokens, which are base64 or the JSON of a checkpoint's state.

Nothing is unpickled, since a page cannot trust what is pasted.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from headrace.errors import TokenMalformedError
from headrace.order import Token, decode_token

_IN_JSON: Final = re.compile(r'"token"\s*:\s*"([^"]*)"')


def read_pasted(text: str) -> tuple[bytes, Token]:
    """Parse a token in base64 or hexadecimal, or the first state in JSON.

    Returns:
        The bytes of the token, and the decoded token.

    Raises:
        TokenMalformedError: There is no token.
    """
    stripped = text.strip()
    if stripped.startswith(("{", "[")):
        found = _IN_JSON.search(stripped)
        if found is None:
            raise TokenMalformedError(
                "the JSON has no token; expected what state_dict() returned, alone or inside a "
                "larger state"
            )
        stripped = found[1]
    compact = "".join(stripped.split())
    # Hexadecimal first, since its digits are valid base64, too.
    for decode in (bytes.fromhex, _base64):
        try:
            raw = decode(compact)
        except ValueError:
            continue
        return raw, decode_token(raw)
    raise TokenMalformedError(
        f"these {len(text)} characters are not a token; expected base64 as printed by `headrace "
        "read`, or the JSON of what state_dict() returned"
    )


def url_token(token: bytes) -> str:
    """Encode a token for use in a URL."""
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def _base64(text: str) -> bytes:
    padded = text.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True)
