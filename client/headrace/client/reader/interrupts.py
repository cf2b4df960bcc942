"""Hold what signals raise, such as Ctrl-C, while the main thread is inside gRPC.

A signal handler runs between any two instructions of the main thread. An exception that it raises
inside gRPC can leave one of gRPC's locks held forever, and then everything that needs the lock
hangs: the next call's thread, or the finaliser of this call. So during a call, handlers run as
usual, but their exceptions wait for the end of the call, which is cancelled at once.

An exception in a finaliser, such as `__del__`, is lost: Python only prints it. Therefore no
finaliser that runs for each batch is written in Python (see `Mapping.give_up`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from signal import SIGINT, SIGTERM
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from signal import getsignal, signal
else:
    # The functions that `signal` wraps: 1.4 us per batch instead of 12.
    from _signal import getsignal, signal


_Handler = Callable[[int, FrameType | None], object]

_SIGNALS = (int(SIGINT), int(SIGTERM))
"""Signals whose handlers may raise: Ctrl-C, and what programs handle to end cleanly."""


class HeldInterrupts:
    """A context that, in the main thread, delays exceptions of signal handlers to its end."""

    def __init__(self, wake: Callable[[], object]) -> None:
        """Prepare to hold.

        Args:
            wake: Called inside the handler when it has raised: must neither block nor enter gRPC,
                and must make the call end soon.
        """
        self._wake = wake
        self._handlers: dict[int, _Handler] = {}
        self._is_holding = False
        self.held: BaseException | None = None
        """What a handler raised since this was entered; None while nothing did."""

    def __enter__(self) -> Self:
        self.held = None
        if threading.current_thread() is threading.main_thread():
            self._is_holding = True
            try:
                for number in _SIGNALS:
                    handler = getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        signal(number, self._run)
            except BaseException:
                self._restore()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.held is not None and error is not None:
            # The call's own error. Its frames keep the call, which gRPC must free while no handler
            # can raise; the exception raised below would carry them out of here.
            error.__traceback__ = error.__context__ = error.__cause__ = None
        self._restore()
        if self.held is not None:
            held, self.held = self.held, None
            raise held.with_traceback(None)

    def _run(self, number: int, frame: FrameType | None) -> None:
        """Run the program's handler, and hold what it raises while the call continues."""
        if not self._is_holding:
            # Signals at the end of a call can leave this in place of a handler.
            self._handlers[number](number, frame)
            return
        try:
            self._handlers[number](number, frame)
        except BaseException as error:  # noqa: BLE001 - raised at the end
            self.held = self.held or error
            self._wake()

    def _restore(self) -> None:
        # At first: Python 3.12 and later let a signal out of this loop where it jumps back, and
        # what is left in place of a handler must hold nothing.
        self._is_holding = False
        while self._handlers:
            try:
                number, handler = next(iter(self._handlers.items()))
                signal(number, handler)
                del self._handlers[number]
            except BaseException as error:  # noqa: BLE001 - raised at the end, as any other
                self.held = self.held or error
