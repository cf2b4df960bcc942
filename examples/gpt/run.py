"""Prepare, pack, serve, train, kill, go on with more ranks, and compare: all of this folder.

    python examples/gpt/run.py gpt-output

trains twice: once on two ranks, undisturbed, and once on two ranks that are killed with SIGKILL in
the middle and replaced by three. It fails unless both saw the same rows at each step, and had the
same losses, bit by bit.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_HERE = Path(__file__).parent
_HEADRACE = Path(sys.executable).parent / "headrace"
_LATEST_S = 1800.0

_Steps = dict[int, tuple[str, tuple[str, ...]]]
"""Of each step its loss, and a digest of each row of its global batch."""


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--kill-at", type=int, default=53, help="a step")
    parser.add_argument("--most-documents", type=int, default=0, help="0 for all")
    # Other options are those of train.py.
    given, options = parser.parse_known_args()
    out: Path = given.out
    out.mkdir(parents=True)
    _call(sys.executable, _HERE / "prepare.py", out / "corpus.parquet", given.most_documents)
    _call(_HEADRACE, "convert", out / "corpus.parquet", out / "corpus")
    _call(_HEADRACE, "index", out / "corpus", "--pack-length", given.length, "--eos", 256)
    target = f"unix:{out.resolve() / 'socket'}"
    command = [target, f"corpus:{given.length}", *options]
    with (out / "server.log").open("w") as log:
        serve = ["serve", f"corpus={out / 'corpus'}", "--listen", target]
        server = subprocess.Popen([_HEADRACE, *serve], stdout=log, stderr=log)
    try:
        _train(out / "undisturbed", command, ranks=2)
        _train(out / "killed", command, ranks=2, kill_at=given.kill_at)
        _train(out / "killed", command, ranks=3)
    finally:
        server.terminate()
        server.wait()
    compare(out)


def compare(out: Path) -> None:
    """Compare both runs, step by step; exit if they differ."""
    wanted, killed = steps_of(out / "undisturbed", 2), steps_of(out / "killed", 2)
    rescaled = steps_of(out / "killed", 3)
    seen = {**killed, **rescaled}
    if not killed or not rescaled or len(seen) != len(wanted):
        sys.exit(
            f"the undisturbed run took {len(wanted)} steps; the killed one, whose first part took "
            f"{len(killed)}, has {len(seen)} in all"
        )
    for found in (killed, rescaled):
        for step, (loss, rows) in found.items():
            if rows != wanted[step][1]:
                sys.exit(f"other rows at step {step}")
            if loss != wanted[step][0]:
                sys.exit(f"loss {loss} at step {step}, and {wanted[step][0]} undisturbed")
    losses = [float.fromhex(loss) for _, (loss, _) in sorted(wanted.items())]
    print(f"the same rows and losses at all {len(wanted)} steps, on 2 ranks and on 2, then 3;")
    print(f"{len(killed.keys() & rescaled.keys())} steps were lost by the kill and taken twice")
    print(f"loss {losses[0]:.3f} at the first step, {losses[-1]:.3f} at the last")
    if losses[-1] >= losses[0]:
        sys.exit("nothing was learnt")


def steps_of(folder: Path, ranks: int) -> _Steps:
    """Return the steps that all ranks of a world noted."""
    noted = []
    for rank in range(ranks):
        path = folder / f"{ranks}-{rank}"
        lines = path.read_text().split("\n") if path.exists() else []
        # A kill may cut the last line off.
        noted.append({int(line.split()[0]): line.split()[1:] for line in lines[:-1]})
    steps: _Steps = {}
    # Which a rank may have taken and not yet noted.
    for step in set.intersection(*map(set, noted)):
        losses = {own[step][0] for own in noted}
        if len(losses) != 1:
            sys.exit(f"the ranks of one world had the losses {losses} at step {step}")
        steps[step] = losses.pop(), tuple(row for own in noted for row in own[step][1:])
    return steps


def _train(folder: Path, command: list[str], *, ranks: int, kill_at: int = 0) -> None:
    """Train until the end, or until a step."""
    folder.mkdir(exist_ok=True)
    target, dataset, *options = command
    given = [target, dataset, folder / "gpt.pt", *options, "--notes", folder]
    words = list(map(str, [sys.executable, _HERE / "train.py", *given]))
    port, log = _free_port(), folder / f"log-{ranks}"
    place = {"WORLD_SIZE": ranks, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
    environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
    processes = []
    with log.open("w") as file:
        for rank in range(ranks):
            own = {**environment, "RANK": str(rank)}
            processes.append(subprocess.Popen(words, env=own, stdout=file, stderr=file))
    latest = time.monotonic() + _LATEST_S
    is_killed = False
    try:
        while any(process.poll() is None for process in processes):
            is_killed = bool(kill_at) and max(steps_of(folder, ranks), default=-1) >= kill_at
            if is_killed:
                break
            if time.monotonic() > latest or any(process.poll() for process in processes):
                sys.exit(f"a rank failed, or took too long:\n{log.read_text()}")
            time.sleep(0.05)
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
    print(f"{folder.name}, {ranks} ranks: {'killed' if is_killed else 'trained to the end'}")


def _call(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
