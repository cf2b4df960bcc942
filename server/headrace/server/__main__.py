"""`python -m headrace.server`: a private server, started by the client of a job.

`headrace serve` is the command for people. This one serves on a unix socket in the client's runtime
folder, and ends by itself: `headrace.server.process.leases` says when. How it reaches the store
comes on its input, as JSON, for secrets may be in it; nothing there means the environment's way. It
says on its output what goes wrong before it serves, an error of ours as a line of JSON; then it
says no more, for the output is the trainer's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from headrace.errors import HeadraceError
from headrace.server.datasets.newest_versions import NewestVersions
from headrace.server.process.forced_end import end_by
from headrace.server.process.leases import Leases
from headrace.server.rpc.server import start_server
from headrace.server.settings.config_layers import ConfigSource
from headrace.server.settings.from_mapping import from_mapping
from headrace.server.settings.server_config import ServerConfig
from headrace.storage import StoreOptions

_DRAIN_S = 5.0
"""Streams that are cut continue elsewhere, so this only spares them the noise. Arbitrary."""


def main(arguments: Sequence[str]) -> int:
    """Serve until nobody needs it; return the exit code."""
    options = _parser().parse_args(arguments)
    asked = threading.Event()

    def ask(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        asked.set()

    signal.signal(signal.SIGTERM, ask)
    try:
        _serve(options, asked)
    except HeadraceError as error:
        failure = {"reason": error.reason, "message": error.message, "metadata": error.metadata}
        sys.stderr.write(json.dumps(failure) + "\n")
        return 1
    return 0


def _serve(options: argparse.Namespace, asked: threading.Event) -> None:
    config = _config(options)
    with start_server(config) as server:
        leases = Leases(
            options.lease,
            options.lock,
            address=server.address,
            newest=NewestVersions(config.dataset_configs, server.versions),
        )
        _release_output()
        leases.wait(
            linger_s=options.linger_s,
            is_in_use=lambda: server.open_call_count > 0,
            is_asked=asked.is_set,
        )
        end_by(_DRAIN_S)
        server.drain()
    Path(options.listen).unlink(missing_ok=True)
    leases.close()


def _config(options: argparse.Namespace) -> ServerConfig:
    flags = {
        **json.loads(options.settings),
        "listen": f"unix:{options.listen}",
        # Nobody else is there to take the streams over.
        "max_stream_s": 0,
        "drain_s": _DRAIN_S,
        "datasets": _datasets(options.sources, sys.stdin.read()),
    }
    return ConfigSource(flags=flags).load()


def _datasets(sources: Sequence[str], store: str) -> dict[str, object]:
    options = json.loads(store or "{}")
    # First, so that errors name it as the client does.
    from_mapping(StoreOptions, options, where="store")
    pairs = (source.split("=", 1) for source in sources)
    return {name: {"url": url, "store": options} for name, url in pairs}


def _release_output() -> None:
    """Let go of the pipe on which the client waits; its end is the sign to connect."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for output in (sys.stdout, sys.stderr):
        output.flush()
        os.dup2(nowhere, output.fileno())
    os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headrace.server", description=__doc__)
    parser.add_argument("--listen", required=True, help="path of the gRPC socket")
    parser.add_argument("--lease", required=True, type=Path, help="path of the lease socket")
    parser.add_argument("--lock", required=True, type=Path, help="path of the start lock")
    parser.add_argument("--settings", default="{}", help="other settings, as JSON")
    parser.add_argument("--linger-s", type=float, default=10.0)
    parser.add_argument("sources", nargs="+", metavar="NAME=URL")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
