"""Close connections that do not send a request, or do not read an answer, in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.page.guard.middleware import DEADLINE_S


class PageProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, which closes connections without a complete request or a reader.

    Args:
        request_s: The most seconds for a request's line and headers.
        uvicorns: The arguments that uvicorn passes to protocols.
    """

    def __init__(self, *, request_s: float, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._request_s = request_s
        self._asked: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._asked = self.loop.call_later(self._request_s, self._cut_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._asked is not None:
            self._asked.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start to wait for the next request; `timeout_keep_alive` ends an idle wait earlier."""
        super().on_response_complete()
        if self._asked is not None:
            self._asked.cancel()
        self._asked = self.loop.call_later(self._request_s, self._cut_if_silent)

    def _cut_if_silent(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.is_closing():
            # uvicorn waits for ever until a browser has read what was written.
            self._asked = self.loop.call_later(DEADLINE_S, self.transport.abort)
        else:
            self.transport.abort()
