"""Environments of their own, for packages that do not live beside ours; made once and kept."""

from __future__ import annotations

import fcntl
import site
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / ".build"
_INSTALL_S, _TESTS_S = 900.0, 600.0
_TORCHVISION = {
    "__init__.py": "",
    "datasets.py": "class VisionDataset:\n    pass\n",
    "transforms/__init__.py": "",
    "transforms/functional.py": "def to_tensor(image):\n    return image\n",
}


def environment(name: str, packages: Sequence[str], *, without: Sequence[str] = ()) -> Path:
    """Make an environment where it is not there yet, which takes a minute or two.

    Args:
        name: The folder's name below ``.build/``; ``make clean`` removes it.
        packages: What pip installs there.
        without: What pip removes again.

    Returns:
        Its folder.
    """
    folder = _FOLDER / name
    _FOLDER.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / ".done").exists():
            return folder
        venv.create(folder, with_pip=True, clear=True)
        _pip(folder, "install", *packages)
        if without:
            _pip(folder, "uninstall", "--yes", *without)
        (folder / ".done").touch()
    return folder


def put_below(folder: Path) -> None:
    """Let an environment import what this one has, where it has nothing of that name itself.

    Args:
        folder: Of the environment.
    """
    (packages,) = folder.glob("lib/python*/site-packages")
    # Folders that a .pth of this environment added are on the path too; those of tests are not.
    kept = {*site.getsitepackages(), *(path for path in sys.path if path.endswith("packages"))}
    roots = [path for path in sys.path if (Path(path) / "headrace").is_dir()]
    lines = "".join(f"{path}\n" for path in [*roots, *sorted(kept)])
    (packages / "below.pth").write_text(lines)


def on_top(folder: Path, packages: Sequence[str]) -> str:
    """Make an environment that has packages on top of what this one has, and a torchrun.

    Args:
        folder: Where; it must be empty.
        packages: What pip installs there.

    Returns:
        Its interpreter.
    """
    venv.create(folder, with_pip=True)
    put_below(folder)
    _pip(folder, "install", "--disable-pip-version-check", *packages)
    python = folder / "bin" / "python"
    torchrun = folder / "bin" / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {python} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    return str(python)


def run_tests(python: str, file: str | Path, temp: Path, *options: str) -> None:
    """Run the tests of a file in another environment: all pass, and none is skipped.

    Args:
        python: Its interpreter, as `on_top` returns it.
        file: The file of tests.
        temp: A folder for what the tests write.
        *options: Of pytest.
    """
    done = subprocess.run(
        [python, "-m", "pytest", "-q", file, *options, "--basetemp", temp],
        capture_output=True,
        text=True,
        timeout=_TESTS_S,
        check=False,
        cwd=_FOLDER.parent,
    )

    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout


def stub_torchvision(folder: Path) -> None:
    """Put as much of torchvision into an environment as `import streaming` asks for.

    The wheel that pip chooses does not load beside the build of torch for machines without a GPU.

    Args:
        folder: Of an environment made ``without=["torchvision"]``.
    """
    (packages,) = folder.glob("lib/python*/site-packages")
    for name, text in _TORCHVISION.items():
        path = packages / "torchvision" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _pip(folder: Path, *arguments: str) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", *arguments]
    subprocess.run(command, check=True, timeout=_INSTALL_S, stdout=sys.stderr)
