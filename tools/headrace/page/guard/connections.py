"""Close connections that do not send a request, or do not read an answer, in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.page.guard.middleware import DEADLINE_S


class PageProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which closes connections that do not send a request or read in time.

    Args:
        request_s: The maximum number of seconds for the line and the headers of a request.
        uvicorn_arguments: The arguments that uvicorn passes to protocols.
    """

    def __init__(self, *, request_s: float, **uvicorn_arguments: Any) -> None:
        super().__init__(**uvicorn_arguments)
        self._request_s = request_s
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._request_s, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Start to wait for the next request; `timeout_keep_alive` closes idle ones earlier."""
        super().on_response_complete()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._request_s, self._close_if_silent)

    def _close_if_silent(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.is_closing():
            # uvicorn would wait forever for a browser to read the response.
            self._timer = self.loop.call_later(DEADLINE_S, self.transport.abort)
        else:
            self.transport.abort()
