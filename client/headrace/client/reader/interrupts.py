"""Hold what signals raise, such as Ctrl-C, while the main thread is inside gRPC.

A signal's handler runs between any two instructions of the main thread. An exception that it raises
inside gRPC can leave one of gRPC's locks locked forever, and then everything that needs the lock
hangs: the next call's thread, or the finaliser of this one. So for the time of a call handlers run
as before, and what they raise waits until the call has ended, which it is told to do at once.

A finaliser, such as `__del__`, drops what comes in it, and Python only prints it: that is why none
of those that run once a batch is written in Python (see `Mapping.give_up`).
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
    # What `signal` wraps to name numbers and handlers, which would take 12 us a batch, not 1.4.
    from _signal import getsignal, signal


_Handler = Callable[[int, FrameType | None], object]

_SIGNALS = (int(SIGINT), int(SIGTERM))
"""Those whose handlers raise: Python's own of Ctrl-C, and those of programs that end cleanly."""


class HeldInterrupts:
    """While entered in the main thread, it delays exceptions of signal handlers until the end."""

    def __init__(self, wake: Callable[[], object]) -> None:
        """Prepare to hold.

        Args:
            wake: Called inside the handler once something is held: must neither block nor enter
                gRPC, and has the call end soon.
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
            # How the call ended. Its frames hold the call, which gRPC must free while no handler
            # raises; what is raised below would carry them out of here.
            error.__traceback__ = error.__context__ = error.__cause__ = None
        self._restore()
        if self.held is not None:
            held, self.held = self.held, None
            raise held.with_traceback(None)

    def _run(self, number: int, frame: FrameType | None) -> None:
        """Run the handler of the program, and keep what it raises while the call continues."""
        if not self._is_holding:
            # Two signals at the end of a call can leave this instead of a handler.
            self._handlers[number](number, frame)
            return
        try:
            self._handlers[number](number, frame)
        except BaseException as error:  # noqa: BLE001 - raised at the end
            self.held = self.held or error
            self._wake()

    def _restore(self) -> None:
        try:
            while self._handlers:
                try:
                    number, handler = next(iter(self._handlers.items()))
                    signal(number, handler)
                    del self._handlers[number]
                except BaseException as error:  # noqa: BLE001 - raised at the end, as any other
                    self.held = self.held or error
        finally:
            self._is_holding = False
