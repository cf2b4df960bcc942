"""Keep the sessions of callers who have logged in, under random ids.

Contract:

1. A session contains the token, which never leaves this process. The token is checked at each
   request, so it gives no access once it is removed from the file.
2. A session ends after `IDLE_S` without a request, `LIFE_S` after it started, and at logout.
3. There are at most `MAX_PER_CALLER` sessions per caller, and `MAX_SESSIONS` in total. A new one
   replaces the least recently used one, preferably of the same caller.

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
MAX_SESSIONS: Final = 1024
MAX_PER_CALLER: Final = 16


@dataclass(slots=True)
class _Session:
    token: str = field(repr=False)
    caller: str
    began: float
    used: float


class Sessions:
    """The open sessions; safe for several threads.

    Args:
        now: Returns seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        # Least recently used first.
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, token: str, *, caller: str) -> str:
        """Start a session for a valid token, and return its id of 43 characters."""
        session_id = secrets.token_urlsafe(32)
        with self._lock:
            self._drop_old()
            own = [key for key, one in self._sessions.items() if one.caller == caller]
            if len(own) >= MAX_PER_CALLER:
                del self._sessions[own[0]]
            elif len(self._sessions) >= MAX_SESSIONS:
                self._sessions.popitem(last=False)
            now = self._now()
            self._sessions[session_id] = _Session(token, caller, now, now)
        return session_id

    def token_of(self, session_id: str) -> str | None:
        """Return the token of a session, and mark the session as used; None if there is none."""
        with self._lock:
            self._drop_old()
            session = self._sessions.get(session_id)
            if session is None:
                return None
            session.used = self._now()
            self._sessions.move_to_end(session_id)
            return session.token

    def close(self, session_id: str) -> None:
        """End a session, if it exists."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def _drop_old(self) -> None:
        now = self._now()
        for session_id, session in list(self._sessions.items()):
            if now - session.used >= IDLE_S or now - session.began >= LIFE_S:
                del self._sessions[session_id]
