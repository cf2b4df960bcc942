"""The wheel on each Python that it is for, where there is one: serve, read, and what has no I/O."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_NAMED = re.findall(r"Python :: (3\.\d+)", " ".join(_PROJECT["classifiers"]))
_TRIED = ("3.11", "3.12", "3.13", "3.14")
_INSTALL_S, _TESTS_S = 900.0, 900.0

# Every part is imported; a server of its own is asked for a batch, over TCP and through a ring.
_USE = """
import importlib, sys, tempfile
from pathlib import Path
for part in ("arguments", "bench", "cli.main", "client", "converter", "errors", "loadtest",
             "order", "payload", "ring", "server", "storage", "v1"):
    importlib.import_module(f"headrace.{part}")
from headrace.client import NumpyDataset, RemoteDataset
from headrace.converter import convert_files
from headrace.server import ServerConfig, start_server

folder = Path(tempfile.mkdtemp())
(folder / "a.csv").write_text("number,text\\n" + "".join(f"{n},t{n}\\n" for n in range(100)))
convert_files(str(folder / "a.csv"), str(folder / "a"), source_format="csv")
config = ServerConfig(datasets={"a": str(folder / "a")}, listen=f"127.0.0.1:0,unix:{folder}/s")
with start_server(config) as server:
    for address, transport in zip(server.addresses, ("grpc", "ring"), strict=True):
        with NumpyDataset(address, "a", batch_size=20, epochs=1) as dataset:
            batches = list(dataset)
            assert transport == dataset.transport, dataset.transport_reason
        numbers = sorted(int(n) for batch in batches for n in batch["number"])
        assert list(range(100)) == numbers, numbers
with RemoteDataset(None, str(folder / "a"), batch_size=20, epochs=1) as dataset:
    assert [20] * 5 == [len(batch["number"]) for batch in dataset]
print("%d.%d" % sys.version_info[:2])
"""
_WITHOUT_IO = ("tests/order", "tests/payload", "tests/ring", "tests/client/wire")


def _interpreter(version: str) -> str | None:
    """Return an interpreter of a version that can make environments, or None."""
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = [*map(str, sorted(homes.glob(f"{version}.*/bin/python"))), f"python{version}"]
    ask = f"import ensurepip, sys, venv; sys.exit('{version}' != '%d.%d' % sys.version_info[:2])"
    for name in (sys.executable, *named):
        program = shutil.which(name)
        if program is None:
            continue
        # A shim may stand for nothing.
        asked = subprocess.run([program, "-c", ask], capture_output=True, check=False, timeout=60)
        if not asked.returncode:
            return program
    return None


def _run(*command: str | Path, folder: Path, timeout_s: float) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=folder,
        env={**kept, "XDG_RUNTIME_DIR": str(folder)},
    )
    assert 0 == done.returncode, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def test_the_versions_that_are_named_are_those_that_are_tried() -> None:
    """A version that nothing runs on is not claimed."""
    assert set(_NAMED) <= set(_TRIED)
    assert _PROJECT["requires-python"] == f">={_TRIED[0]}"


@pytest.mark.long
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("version", _TRIED)
def test_it_runs_on_this_python(version: str, tmp_path: Path) -> None:
    """The wheel in an environment of its own, with the versions that the tests ran with."""
    program = _interpreter(version)
    if program is None:
        pytest.skip(f"there is no Python {version} on this machine")
    tmp_path.chmod(0o700)
    _run(program, "-m", "venv", "env", folder=tmp_path, timeout_s=300)
    python = tmp_path / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    wheel = ("wheel", "--no-deps", "-w", tmp_path, _ROOT)
    _run(*pip, *wheel, folder=tmp_path, timeout_s=_INSTALL_S)
    (built,) = tmp_path.glob("headrace-*.whl")
    wanted = (f"{built}[server,cli,images,torch]", "hypothesis", "pytest", "pytest-timeout")
    constraints = _ROOT / "constraints.txt"
    _run(*pip, "install", "-c", constraints, *wanted, folder=tmp_path, timeout_s=_INSTALL_S)

    said = _run(python, "-W", "error", "-c", _USE, folder=tmp_path, timeout_s=300)
    assert f"{version}\n" == said

    options = ("-q", "-p", "no:cacheprovider", "--rootdir", _ROOT, "-m", "not long and not gpu")
    paths = [_ROOT / path for path in _WITHOUT_IO]
    _run(python, "-m", "pytest", *options, *paths, folder=tmp_path, timeout_s=_TESTS_S)
