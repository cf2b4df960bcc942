"""Keep sessions of callers who have logged in, under random numbers.

Contract:

1. A session contains the token, only in this process, and the token is checked at each request, so
   a token that was removed from the file gives no access any more.
2. Sessions end after `IDLE_S` without a request, `LIFE_S` after they started, and at logout.
3. There are at most `MOST_EACH` sessions per caller, and `MOST` in total; the least recently used
   one is removed for a new one, first of the same caller.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

IDLE_S: Final = 3600.0
LIFE_S: Final = 12 * 3600.0
MOST: Final = 1024
MOST_EACH: Final = 16


@dataclass(slots=True)
class _Session:
    token: str = field(repr=False)
    caller: str
    began: float
    used: float


class Sessions:
    """The open sessions; safe for several threads.

    Args:
        now: Seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        # Least recently used first.
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, token: str, *, caller: str) -> str:
        """Start a session for a valid token; return its number, 43 characters."""
        number = secrets.token_urlsafe(32)
        with self._lock:
            self._drop_old()
            own = [key for key, one in self._sessions.items() if one.caller == caller]
            if len(own) >= MOST_EACH:
                del self._sessions[own[0]]
            elif len(self._sessions) >= MOST:
                self._sessions.popitem(last=False)
            now = self._now()
            self._sessions[number] = _Session(token, caller, now, now)
        return number

    def token_of(self, number: str) -> str | None:
        """Return the token of a session, and mark it as used; None if there is no such session."""
        with self._lock:
            self._drop_old()
            session = self._sessions.get(number)
            if session is None:
                return None
            session.used = self._now()
            self._sessions.move_to_end(number)
            return session.token

    def close(self, number: str) -> None:
        """End a session, if it exists."""
        with self._lock:
            self._sessions.pop(number, None)

    def _drop_old(self) -> None:
        now = self._now()
        for number, session in list(self._sessions.items()):
            if now - session.used >= IDLE_S or now - session.began >= LIFE_S:
                del self._sessions[number]
