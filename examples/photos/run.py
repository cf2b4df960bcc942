"""Cut, convert, serve, train, kill, go on, and compare: all of this folder in some minutes.

    python examples/photos/run.py /usr/share/backgrounds photos-output

trains twice on two ranks: once undisturbed, and once killed with SIGKILL in the middle and begun
again. It fails unless both saw the same pixels at every step, and learnt what they saw.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_HERE = Path(__file__).parent
_RANKS = 2
_LATEST_S = 1200.0


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("photographs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pieces", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--floor", type=float, default=0.5, help="least accuracy")
    given = parser.parse_args()
    out: Path = given.out
    out.mkdir(parents=True)
    _python("cut.py", given.photographs, out / "photos", "--pieces", given.pieces)
    headrace = Path(sys.executable).parent / "headrace"
    subprocess.run([headrace, "convert", out / "photos", out / "data"], check=True)
    target = f"unix:{out.resolve() / 'socket'}"
    datasets = [f"{split}={out / 'data' / split}" for split in ("train", "val")]
    with (out / "server.log").open("w") as log:
        server = subprocess.Popen(
            [headrace, "serve", *datasets, "--listen", target], stdout=log, stderr=log
        )
    try:
        _python("grid.py", target, out / "grid.png")
        classes = len(list((out / "photos" / "train").iterdir()))
        options = ["--epochs", given.epochs, "--classes", classes]
        found = _train(out / "undisturbed", target, options)
        half = given.epochs * given.pieces * classes // 120
        _train(out / "killed", target, options, kill_at=half)
        again = _train(out / "killed", target, options)
    finally:
        server.terminate()
        server.wait()
    for rank in range(_RANKS):
        wanted, seen = (_digests(out / run, rank) for run in ("undisturbed", "killed"))
        if wanted != seen or len(seen) != len(dict(seen)):
            sys.exit(f"rank {rank} saw other pixels in the run that was killed")
    print(f"the same pixels at all {len(wanted)} steps on {_RANKS} ranks")
    print(f"accuracy {found:.3f} undisturbed, {again:.3f} killed; a guess is {1 / classes:.3f}")
    if min(found, again) < given.floor:
        sys.exit(f"the accuracy is below {given.floor}")


def _train(folder: Path, target: str, options: list[object], *, kill_at: int = 0) -> float:
    """Train until the end, or until a step; return the accuracy."""
    folder.mkdir(exist_ok=True)
    given = [target, folder / "model.pt", *options, "--digests", folder]
    command = list(map(str, [sys.executable, _HERE / "train.py", *given]))
    port, log = _free_port(), folder / "log"
    log.write_text("")
    ranks = []
    for rank in range(_RANKS):
        place = {"RANK": rank, "WORLD_SIZE": _RANKS, "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        with log.open("a") as file:
            environment["MASTER_ADDR"] = "127.0.0.1"
            ranks.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
    latest = time.monotonic() + _LATEST_S
    try:
        while any(process.poll() is None for process in ranks):
            steps = re.findall(r"step (\d+)", log.read_text())
            if kill_at and steps and int(steps[-1]) >= kill_at:
                time.sleep(0.3)  # into what no checkpoint has yet
                break
            if time.monotonic() > latest or any(process.poll() for process in ranks):
                sys.exit(f"a rank failed, or took too long:\n{log.read_text()}")
            time.sleep(0.1)
    finally:
        for process in ranks:
            process.send_signal(signal.SIGKILL)
            process.wait()
    accuracy = re.findall(r"accuracy (\S+)", log.read_text())
    print(f"{folder.name}: {'trained to the end' if accuracy else 'killed'}", flush=True)
    return float(accuracy[0]) if accuracy else 0.0


def _digests(folder: Path, rank: int) -> list[tuple[str, str]]:
    """Return what a rank saw at each step; steps after a checkpoint were seen twice."""
    lines = (folder / f"rank{rank}").read_text().splitlines()
    pairs = {(step, digest) for step, _, digest in (line.partition(" ") for line in lines)}
    return sorted(pairs)


def _python(script: str, *given: object) -> None:
    subprocess.run([sys.executable, _HERE / script, *map(str, given)], check=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
