"""End a call that is under way: in order if it can be, and if not by force.

A stream looks at what it is told between two messages. One whose client does not read stands in a
message for as long as the client likes; what ends it is the call's own cancellation, which its
client finds as a broken connection and reconnects from its token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.server.rpc.timers import Alarms

# How long a stream that is told to end may take for it (arbitrary: some messages to a client that
# reads, and less than the two seconds within which it must be over).
GRACE_S = 1.0


class Interruptible(Protocol):
    """What a call does: a stream."""

    def interrupt(self, error: HeadraceError) -> None:
        """End with an error, between two batches."""


class CallEnd:
    """Ends one call; from any thread.

    Args:
        alarms: Do it at its time.
        cancel: Ends the call by force.

    Attributes:
        stream: What it does, as soon as that is there.
    """

    def __init__(self, alarms: Alarms, cancel: Callable[[], object]) -> None:
        self._alarms = alarms
        self._cancel = cancel
        self.stream: Interruptible | None = None

    def end(self, error: HeadraceError) -> None:
        """End the call within `GRACE_S`: with an error, or by force."""
        if self.stream is not None:
            self.stream.interrupt(error)
        self._alarms.after(GRACE_S, self._cancel)
