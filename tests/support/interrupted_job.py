"""A loop that is interrupted over and over, by two signals that come close after each other.

Run as a program with the address of a server and a number of rounds. It writes as JSON what came of
each: the name of the error, the place of the state, and the place of the batch that came next.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time

from headrace.client import Deadlines, RemoteDataset, Transport
from headrace.order import decode_token

BATCH = 4
QUICK = Deadlines(silence_s=2)


def _interrupt(after_s: float, gap_s: float) -> None:
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(gap_s)
    os.kill(os.getpid(), signal.SIGINT)


def _position(dataset: RemoteDataset) -> tuple[int, int]:
    token = dataset._progress.place.token
    if token is None:
        return 0, 0
    content = decode_token(token)
    return content.epoch, content.position


def _round(dataset: RemoteDataset, seen: list[tuple[int, int]], pair: threading.Thread) -> str:
    """Loop until interrupted; return the error's name."""
    error = ""
    try:
        pair.start()
        while True:
            for batch in dataset:
                place = batch.epoch, batch.position
                seen.append(place)
    except BaseException as found:  # noqa: BLE001 - which it is, is the question
        error = type(found).__name__
    while pair.is_alive():
        try:
            pair.join()
        except KeyboardInterrupt:
            continue
    return error


def main() -> None:
    """Interrupt it."""
    address, rounds = sys.argv[1], int(sys.argv[2])
    chance = random.Random(int(sys.argv[3]))
    dataset = RemoteDataset(
        address, "d", batch_size=BATCH, transport=Transport(prefetch_bytes=1 << 12), deadlines=QUICK
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
        found.append((error, seen, state, (batch.epoch, batch.position)))
    dataset.close()
    until = time.monotonic() + 30
    while (names := [thread.name for thread in threading.enumerate()]) != ["MainThread"]:
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    sys.stdout.write(json.dumps({"rounds": found, "threads": names}))


if __name__ == "__main__":
    main()
