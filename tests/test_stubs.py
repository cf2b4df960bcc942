"""The committed stubs are what the schema says, and import where trainers live."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_regenerating_the_stubs_changes_nothing(tmp_path: Path) -> None:
    """`make proto` leaves the tree as it is."""
    tools = ROOT / ".venv-proto" / "bin"
    if not tools.exists():
        pytest.fail("the stub tools are missing: run `make .venv-proto/.done`, or `make test`")
    folder = ROOT / "proto" / "headrace" / "v1"
    protoc: list[str | Path] = [tools / "python", "-m", "grpc_tools.protoc"]
    protoc += [f"--proto_path={ROOT / 'proto'}"]
    protoc += [f"--plugin=protoc-gen-mypy_grpc={tools / 'protoc-gen-mypy_grpc'}"]
    messages = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out")]
    service = [f"--grpc_python_out={tmp_path}", f"--mypy_grpc_out=quiet:{tmp_path}"]
    subprocess.run([*protoc, *messages, *folder.glob("*.proto")], cwd=ROOT, check=True, timeout=240)
    subprocess.run(
        [*protoc, *service, folder / "shard_service.proto"], cwd=ROOT, check=True, timeout=240
    )

    made = {path.name: path.read_text() for path in (tmp_path / "headrace" / "v1").iterdir()}
    assert made == {path.name: path.read_text() for path in folder.glob("*_pb2*")}


@pytest.mark.parametrize("version", ["5.29.5", "6.33.0", "7.36.2"])
def test_stubs_import_on_every_protobuf_that_trainers_have(version: str, tmp_path: Path) -> None:
    """Training images hold protobuf 5.29, 6 or 7; the stubs import on each without a warning."""
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--target", target, f"protobuf=={version}"], check=True, timeout=240
    )
    program = (
        "import google.protobuf as p; from headrace.v1 import shard_service_pb2_grpc; "
        "from headrace.v1 import shard_service_pb2 as pb; "
        "m = pb.BatchHeader.FromString(pb.BatchHeader(step=3).SerializeToString()); "
        "print(p.__version__, m.step)"
    )

    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"PYTHONPATH": f"{target}:{ROOT / 'proto'}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert (f"{version} 3\n", "", 0) == (result.stdout, result.stderr, result.returncode)
