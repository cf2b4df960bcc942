"""Send SIGINT at chosen points of a program: each that Python could run a handler at."""

from __future__ import annotations

import dis
import functools
import gc
import signal
import sys
from types import CodeType, FrameType
from typing import Any, Self

_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")
"""Instructions after which Python looks for signals."""


class InterruptAt:
    """While it is entered, in the main thread, signals come at points of what is called.

    No garbage is collected meanwhile: a finaliser of what another test has left would pass points
    too, and Python drops what comes in it.

    A point is one after an instruction at which Python looks for signals. Some more count than
    Python has: after a call of a function of Python it looks only inside. And a few less: an
    exception comes out one instruction late, so those are left out where another handler begins.

    Attributes:
        sent: Where signals were sent, as ``file:function:line``.
        count: Points that were passed.
    """

    def __init__(self, *gaps: int) -> None:
        """Prepare to interrupt.

        Args:
            gaps: Points to pass before each signal, counted from the signal before.
        """
        self._gaps = list(gaps)
        self._left: int | None = None
        self._looked: dict[FrameType, int] = {}
        self._home: FrameType | None = None
        self.sent: list[str] = []
        self.count = 0

    def __enter__(self) -> Self:
        gc.disable()
        self._home = sys._getframe(1)
        self._next()
        # A trace function that raises is removed; the profiler puts it back.
        sys.setprofile(self._profile)
        self._trace_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._left = None
        sys.setprofile(None)
        sys.settrace(None)
        gc.enable()
        self._home = None
        self._looked.clear()

    def _next(self) -> None:
        self._left = self._gaps.pop(0) if self._gaps else None

    def _trace_all(self) -> None:
        sys.settrace(self._trace)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._home:
            if frame.f_code not in _OURS:
                frame.f_trace, frame.f_trace_opcodes = self._trace, True
            frame = frame.f_back

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        del frame, event, argument
        if self._left is not None and sys.gettrace() is None:
            self._trace_all()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        del argument
        if frame.f_code in _OURS or frame is self._home:
            return None
        frame.f_trace_opcodes = True
        if event in ("return", "exception"):
            # After a call that raised Python does not look.
            self._looked.pop(frame, None)
        elif event == "opcode":
            before, self._looked[frame] = self._looked.get(frame, -1), frame.f_lasti
            if before >= 0 and _is_point(frame.f_code, before, frame.f_lasti):
                self._pass(frame)
        return self._trace

    def _pass(self, frame: FrameType) -> None:
        self.count += 1
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            self._next()
            code = frame.f_code
            file = "/".join(code.co_filename.split("/")[-2:])
            self.sent.append(f"{file}:{code.co_qualname}:{frame.f_lineno}")
            signal.raise_signal(signal.SIGINT)


def _is_point(code: CodeType, place: int, following: int) -> bool:
    """Say whether a signal can come after an instruction, and is handled as before the next."""
    return dis.opname[code.co_code[place]].startswith(_LOOKS) and (
        _handler_of(code, place) == _handler_of(code, following)
    )


@functools.cache
def _handler_of(code: CodeType, place: int) -> int | None:
    """Return where an exception of an instruction is handled."""
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined] # since 3.11
        if entry.start <= place < entry.end:
            return int(entry.target)
    return None


_OURS = frozenset(
    found.__code__
    for found in (*vars(InterruptAt).values(), _is_point)
    if hasattr(found, "__code__")
)
