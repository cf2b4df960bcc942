"""Kill servers and cut the network while a swarm runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence

from headrace.errors import ConfigurationError
from headrace.loadtest.faults.proxy import Cut, FaultyProxy

_WAIT_S = 30.0
_POLL_S = 0.1


class Kill:
    """Kill a process with SIGKILL, repeatedly if it can be restarted."""

    def __init__(self, pid: int, *, restart: Sequence[str] = ()) -> None:
        """Choose the process to kill.

        Args:
            pid: The process to kill first.
            restart: The command that restarts it, whose process is killed next. Empty to kill once.

        Raises:
            ConfigurationError: There is no such process or command, or the process belongs to
                another user.
        """
        if restart and shutil.which(restart[0]) is None:
            raise ConfigurationError(
                f"{restart[0]!r} cannot be started; give the command of a server as --restart"
            )
        try:
            os.kill(pid, 0)
        except OSError as error:
            raise ConfigurationError(
                f"process {pid} cannot be killed ({error.strerror}); give the PID of a server that "
                "you started"
            ) from error
        self._pid: int | None = pid
        self._restart = tuple(restart)
        self._child: subprocess.Popen[bytes] | None = None
        self.count = 0

    @property
    def last_pid(self) -> int | None:
        """Return the process that was started last and is still running, or None."""
        return None if self._child is None else self._child.pid

    def end(self) -> None:
        """Kill the process that was started last, and start no other."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(_WAIT_S)
        self._pid = self._child = None

    def __call__(self) -> None:
        """Kill the process and restart it."""
        if self._pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            self.count += 1
        if self._child is not None:
            self._child.wait(_WAIT_S)
        self._pid = None
        if self._restart:
            # The process outlives this one, so it must not keep our output open.
            self._child = subprocess.Popen(  # noqa: S603 - the user's own command
                self._restart,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._pid = self._child.pid


@contextlib.contextmanager
def run_faults(
    kills: Sequence[Kill],
    *,
    proxies: Sequence[FaultyProxy],
    cuts: Sequence[Cut],
    every_s: float,
    batches: Callable[[], int],
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[list[str]]:
    """Cause faults until the block ends.

    A fault waits until batches have arrived since the last one. Otherwise, a server that takes
    longer to start than the time between faults would always be killed before it serves a batch.

    Args:
        kills: The kills, in turn.
        proxies: The proxies of the swarm.
        cuts: The cuts: those without an end start at once, the others in turn.
        every_s: The minimum number of seconds between two faults of a kind.
        batches: Returns how many batches the swarm has read so far.
        note: Called with a short name of each fault while the swarm runs, from any thread.

    Yields:
        Why faults could not be caused, complete after the block. A kind of faults, kills or cuts,
        ends with the first that fails.
    """
    for cut in cuts:
        if cut.kind != "reset" and not cut.seconds:
            _apply(proxies, cut)
    passing = [cut for cut in cuts if cut.kind == "reset" or cut.seconds]
    stop = threading.Event()
    failed: list[str] = []
    threads = [
        threading.Thread(
            target=_loop, args=(actions, every_s, batches, stop, failed), name="headrace-faults"
        )
        for actions in (
            [_kill_action(kill, note) for kill in kills],
            [_cut_action(proxies, cut, stop, note) for cut in passing],
        )
        if actions
    ]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        stop.set()
        for thread in threads:
            thread.join(_WAIT_S)


def _loop(
    actions: Sequence[Callable[[], None]],
    every_s: float,
    batches: Callable[[], int],
    stop: threading.Event,
    failed: list[str],
) -> None:
    for action in itertools.cycle(actions):
        before = batches()
        if stop.wait(every_s):
            return
        while batches() <= before:
            if stop.wait(_POLL_S):
                return
        try:
            action()
        except (OSError, subprocess.SubprocessError) as error:
            failed.append(str(error))
            return


def _kill_action(kill: Kill, note: Callable[[str], None]) -> Callable[[], None]:
    def act() -> None:
        before = kill.count
        kill()
        if kill.count > before:
            note("kill")

    return act


def _cut_action(
    proxies: Sequence[FaultyProxy], cut: Cut, stop: threading.Event, note: Callable[[str], None]
) -> Callable[[], None]:
    def act() -> None:
        note(f"{cut.kind} {cut.seconds:g} s" if cut.seconds else cut.kind)
        _apply(proxies, cut)
        if cut.seconds:
            stop.wait(cut.seconds)
            _apply(proxies, None)

    return act


def _apply(proxies: Sequence[FaultyProxy], cut: Cut | None) -> None:
    for proxy in proxies:
        proxy.apply(cut)
