"""Parse pasted tokens, which are base64 or the JSON of a checkpoint's state.

Nothing is unpickled, since a page cannot trust what is pasted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import TokenMalformedError
from headrace.order import Token, decode_token
from headrace.page.runs.run_options import RunOptions, options_in_state

_DEEPEST: Final = 6
_MAX_ITEMS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PastedText:
    """A pasted token or state.

    Attributes:
        raw: The bytes of the token.
        token: The decoded token.
        options: The options that a state contains besides its token.
    """

    raw: bytes
    token: Token
    options: RunOptions


def read_pasted(text: str) -> PastedText:
    """Parse a token in base64 or hexadecimal, or the first state in JSON.

    Raises:
        TokenMalformedError: There is no token.
    """
    stripped = text.strip()
    options = RunOptions()
    if stripped.startswith(("{", "[")):
        stripped, options = _in_json(stripped)
    compact = "".join(stripped.split())
    # Hexadecimal first, since its digits are valid base64, too.
    for decode in (bytes.fromhex, _base64):
        try:
            raw = decode(compact)
        except ValueError:
            continue
        return PastedText(raw, decode_token(raw), options)
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


def _in_json(text: str) -> tuple[str, RunOptions]:
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenMalformedError(
            "the pasted text starts like JSON but cannot be read; expected a token"
        ) from error
    for number, item in enumerate(_mappings(top, _DEEPEST)):
        if number >= _MAX_ITEMS:
            break
        token = item.get("token")
        if isinstance(token, str):
            return token, options_in_state(item)
    raise TokenMalformedError(
        "the JSON has no token; expected what state_dict() returned, alone or inside a larger state"
    )


def _mappings(item: Any, deepest: int) -> Iterator[Mapping[str, Any]]:
    if deepest and isinstance(item, dict):
        yield item
    inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    if deepest:
        for each in inner:
            yield from _mappings(each, deepest - 1)
