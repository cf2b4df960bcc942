"""The committed stubs are what the schema says, and import where trainers live."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def test_regenerating_the_stubs_changes_nothing(tmp_path: Path) -> None:
    """`make proto` leaves the tree as it is."""
    tools = ROOT / ".venv-proto" / "bin"
    if not tools.exists():
        pytest.fail("the stub tools are missing: run `make .venv-proto/.done`, or `make test`")
    outputs = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run(
        [
            *(tools / "python", "-m", "grpc_tools.protoc", "--proto_path=proto"),
            f"--plugin=protoc-gen-mypy_grpc={tools / 'protoc-gen-mypy_grpc'}",
            *outputs,
            f"--mypy_grpc_out=quiet:{tmp_path}",
            "headrace/v1/shard_service.proto",
        ],
        cwd=ROOT,
        check=True,
        timeout=240,
    )

    for ending in GENERATED:
        path = Path("headrace/v1") / f"shard_service{ending}"
        assert (ROOT / "proto" / path).read_text() == (tmp_path / path).read_text()


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
