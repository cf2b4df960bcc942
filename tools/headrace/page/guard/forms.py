"""Parse forms as browsers send them by default, without files."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

_MAX_FIELDS: Final = 32
BODY_S: Final = 10.0
"""How long a browser may take to send a form, as for the headers of a request."""
_KIND: Final = "application/x-www-form-urlencoded"


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form, with the last value of each name; none if it is not a form.

    Raises:
        TimeoutError: The browser takes longer than `BODY_S` to send it.
        ClientDisconnect: The browser has disconnected.
    """
    async with asyncio.timeout(BODY_S):
        body = await request.body()
    if request.headers.get("content-type", "").partition(";")[0].strip() != _KIND:
        return {}
    try:
        return dict(
            parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        )
    except ValueError:
        return {}
