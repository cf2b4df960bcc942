"""A loop that is interrupted over and over, by two signals that come close after each other.

Run as a program with the address of a server, a number of rounds, a seed, and the kind of dataset,
``torch`` or ``numpy``. It writes as JSON what came of
each: the name of the error, the place of the state, and the place of the batch that came next.
Python drops what a signal raises in a finaliser, be it of another library: such are counted, and
the signal comes again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from typing import Any

from headrace.client import Deadlines, NumpyDataset, RemoteDataset, Transport
from headrace.order import decode_token

BATCH = 4
QUICK = Deadlines(silence_s=2)


LOOK_S = 0.1
# A signal that a thread has taken is the main thread's a moment later.
_LATE_S = 0.02

_errors: list[str] = []
_dropped: list[str] = []


def _interrupt(after_s: float, gap_s: float) -> None:
    errors, dropped = len(_errors), len(_dropped)
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(gap_s)
    os.kill(os.getpid(), signal.SIGINT)
    while len(_errors) == errors:
        time.sleep(LOOK_S)
        if len(_dropped) > dropped:
            dropped = len(_dropped)
            os.kill(os.getpid(), signal.SIGINT)


def _note_dropped(dropped: sys.UnraisableHookArgs) -> None:
    where = traceback.extract_tb(dropped.exc_traceback)
    _dropped.append(f"{dropped.exc_value!r} in {where[-1].filename if where else '?'}")


def _position(dataset: RemoteDataset | NumpyDataset) -> tuple[int, int]:
    token = dataset._progress.place.token
    if token is None:
        return 0, 0
    content = decode_token(token)
    return content.epoch, content.position


def _place(dataset: RemoteDataset | NumpyDataset, batch: Any) -> tuple[int, int]:
    """Return the epoch and position of a batch that the loop has just got."""
    if isinstance(dataset, RemoteDataset):
        return batch.epoch, batch.position
    # In storage order; the place after the last batch of an epoch is in the next one.
    epoch, position = _position(dataset)
    start = int(batch["x"][0])
    return epoch - (position <= start), start


def _round(
    dataset: RemoteDataset | NumpyDataset, seen: list[tuple[int, int]], pair: threading.Thread
) -> str:
    """Loop until interrupted; return the error's name."""
    error = ""
    try:
        pair.start()
        while True:
            for batch in dataset:
                place = _place(dataset, batch)
                seen.append(place)
    except BaseException as found:  # noqa: BLE001 - which it is, is the question
        error = type(found).__name__
    _errors.append(error)
    _settle(pair)
    return error


def _settle(pair: threading.Thread) -> None:
    """Wait for the pair to end and for the last of its signals, which may reach a thread late."""
    while True:
        try:
            pair.join()
            while signal.SIGINT in signal.sigpending():
                time.sleep(LOOK_S)
            time.sleep(_LATE_S)
        except KeyboardInterrupt:
            continue
        return


def main() -> None:
    """Interrupt it."""
    address, rounds = sys.argv[1], int(sys.argv[2])
    chance = random.Random(int(sys.argv[3]))
    sys.unraisablehook = _note_dropped
    # Who starts a program in the background of a script has it ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kind: Any = {"torch": RemoteDataset, "numpy": NumpyDataset}[sys.argv[4]]
    dataset = kind(
        address,
        "d",
        batch_size=BATCH,
        shuffle=kind is RemoteDataset,
        transport=Transport(prefetch_bytes=1 << 12, deadlines=QUICK),
    )
    found = []
    for _ in range(rounds):
        seen: list[tuple[int, int]] = []
        gap_s = chance.choice([0.0, 0.0001, 0.001, 0.01, 0.05]) * chance.random()
        wait_s = chance.choice([0.0005, 0.01, 0.05]) * chance.random()
        pair = threading.Thread(target=_interrupt, args=(wait_s, gap_s))
        error = _round(dataset, seen, pair)
        state = _position(dataset)
        batch = next(iter(dataset))
        found.append((error, seen, state, _place(dataset, batch)))
    dataset.close()
    until = time.monotonic() + 30
    while (names := [thread.name for thread in threading.enumerate()]) != ["MainThread"]:
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    sys.stdout.write(json.dumps({"rounds": found, "threads": names, "dropped": _dropped}))


if __name__ == "__main__":
    main()
