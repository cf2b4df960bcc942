"""What `pip install` puts on a trainer's machine."""

import json
import os
import re
import subprocess
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOT_THIN = {"pyarrow", "pyspark", "boto3", "pandas"}


def _run(*command: str | Path, beside: Path | None = None) -> str:
    environment = os.environ | ({} if beside is None else {"PYTHONPATH": str(beside)})
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment made by `pip install .`, nothing else."""
    folder = tmp_path_factory.mktemp("thin")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    _run(
        *(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("-c", constraints, ROOT),
    )
    return python


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of links to this environment's torch and what it needs: its copy takes a minute."""
    folder = tmp_path_factory.mktemp("torch")
    _link("torch", folder)
    return folder


def _link(name: str, folder: Path) -> None:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return  # of another platform
    for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
        link = folder / top
        if not link.name.endswith(".dist-info") and not link.is_symlink():
            link.symlink_to(Path(str(found.locate_file(top))))
    for requirement in found.requires or ():
        if "extra ==" not in requirement:
            _link(re.split(r"[^\w.-]", requirement)[0], folder)


def _distributions(python: Path) -> set[str]:
    listed = json.loads(_run(python, "-m", "pip", "list", "--format", "json"))
    return {entry["name"].lower() for entry in listed}


def test_the_thin_client_brings_five_packages(installed: Path) -> None:
    """Nothing of Spark, Arrow or boto3 reaches a trainer."""
    found = _distributions(installed)

    assert {"grpcio", "protobuf", "numpy", "googleapis-common-protos", "xxhash"} <= found
    assert NOT_THIN & found == set()


def test_site_packages_gets_headrace_and_its_metadata_alone(installed: Path) -> None:
    """No `proto`, `server`, `client` or `tests` lands at the top; Spark finds one name there."""
    listed = _run(installed, "-m", "pip", "show", "--files", "headrace").split("Files:")[1]
    tops = {line.strip().split("/")[0] for line in listed.splitlines() if line.strip()}

    assert {"headrace", "headrace-0.1.0.dist-info", "pyspark_headrace", ".."} == tops
    assert "../../../bin/headrace" in listed


def test_the_client_imports_beside_torch(installed: Path, torch: Path) -> None:
    """`import headrace.client` leaves torch alone; RemoteDataset loads it."""
    program = (
        "import sys, headrace.client; before = 'torch' in sys.modules; "
        "headrace.client.RemoteDataset; print(before, 'torch' in sys.modules)"
    )

    assert "False True\n" == _run(installed, "-W", "error", "-c", program, beside=torch)


def test_the_command_line_says_what_is_missing(installed: Path) -> None:
    """Without the [cli] extra the command says what to install, in one line."""
    done = subprocess.run(
        [installed.parent / "headrace", "read"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert (1, "") == (done.returncode, done.stdout)
    assert 1 == done.stderr.count("\n")
    assert "pip install 'headrace[cli]'" in done.stderr


def test_a_private_server_says_what_it_needs(installed: Path, torch: Path, tmp_path: Path) -> None:
    """Without the [server] extra the loop's error says what to install."""
    program = (
        "from headrace.client import RemoteDataset\n"
        f"try: next(iter(RemoteDataset(None, {str(tmp_path)!r}, batch_size=4)))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = _run(installed, "-c", program, beside=torch)

    assert said.startswith("ConfigurationError ")
    assert "pip install 'headrace[server]'" in said


def test_the_schema_travels_with_the_wheel(installed: Path) -> None:
    """Users of other languages find the .proto where pip put it."""
    program = (
        "import pathlib, headrace.v1 as v; "
        "print(*sorted(p.name for p in pathlib.Path(v.__path__[0]).glob('*.proto')))"
    )

    schema = sorted(path.name for path in (ROOT / "proto/headrace/v1").glob("*.proto"))
    assert schema == _run(installed, "-c", program).split()
