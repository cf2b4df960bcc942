"""Ask what frameworks train on when they are killed, by headrace and by their own loaders.

    PYTHONPATH=tests:examples python -m integrations.degrees --json docs/integrations/degrees.json

Each trains a line over gloo on the CPU, in global batches of 48, and is killed at random in epochs
1 and 3. `integrations.degrees.page` writes docs/integrations/index.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from integrations.conftest import OWN
from integrations.degrees.asked import ask
from integrations.degrees.frameworks import FRAMEWORKS
from integrations.degrees.told import Task
from integrations.line import GLOBAL_BATCH, STEPS, line_server
from support.environments import on_top

_LIMIT_S = 1800.0


def main() -> None:
    """Ask, and keep the answers."""
    parser = argparse.ArgumentParser(
        prog="degrees", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=FRAMEWORKS, default=[*FRAMEWORKS])
    parser.add_argument("--json", type=Path, required=True, help="answers; others in it are kept")
    given = parser.parse_args()
    for name in given.only:
        if name in OWN and not _is_installed(name):
            _elsewhere(name, given.json)
        else:
            _keep(name, _examined(name), given.json)


def _is_installed(name: str) -> bool:
    with suppress(PackageNotFoundError):
        return bool(version(FRAMEWORKS[name].distribution))
    return False


def _elsewhere(name: str, answers: Path) -> None:
    """Ask in an environment that has the framework."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        python = on_top(Path(folder), OWN[name])
        command = [python, "-m", "integrations.degrees", "--only", name, "--json", str(answers)]
        subprocess.run(command, check=True, timeout=_LIMIT_S)


def _keep(name: str, answer: dict[str, Any], answers: Path) -> None:
    found = json.loads(answers.read_text()) if answers.exists() else {}
    found[name] = answer
    ordered = {each: found[each] for each in FRAMEWORKS if each in found}
    answers.write_text(json.dumps(ordered, indent=1) + "\n")


def _examined(name: str) -> dict[str, Any]:
    framework = FRAMEWORKS[name]
    loaders: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with line_server(folder / "line", GLOBAL_BATCH * STEPS) as server:
            for loader in framework.loaders:
                found = ask(Task(name, loader, server.address, folder / loader))
                _show(f"{name}, {loader}: {found}")
                loaders[loader] = found.to_json()
    return {"version": version(framework.distribution), "loaders": loaders}


def _show(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%X')} {line}\n")


if __name__ == "__main__":
    main()
