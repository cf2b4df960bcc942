"""`headrace loadtest` as a real process, against a real server that is killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.swarm.report import LoadReport
from headrace.loadtest import Proof, Summary, TokenCheck
from support.command import HEADRACE, run, serving
from support.datasets import small_table, write_dataset
from support.liar import Lie, exchange, liar, lose, repeat
from support.running import server_of
from support.waiting import until

_SAMPLES = 2000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 2,000 samples."""
    where = str(tmp_path_factory.mktemp("loadtest") / "ds")
    write_dataset(where, small_table(_SAMPLES), shard_samples=[500] * 4)
    return where


def test_a_server_that_is_killed_loses_nothing(url: str) -> None:
    """Killed and started again, over a network that is cut: proved, and exit code 0."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    again = shlex.join([str(HEADRACE), "serve", "--listen", listen, f"ds={url}"])
    with serving({"ds": url}, listen=listen) as server:
        found = run(
            *("loadtest", server.address, "ds", "--ranks", "4", "--global-batch-size", "20"),
            *("--epochs", "1", "--step-ms", "50", "--manifest", url, "--rescale", "4:3@50%"),
            *("--kill", str(server.process.pid), "--restart", again, "--every", "1"),
            *("--cut-network", "reset", "--cut-network", "latency=0.002", "--json"),
            timeout_s=240,
        )
    left = [line for line in found.stderr.splitlines() if line.startswith("left running")]
    try:
        report = json.loads(found.stdout)
    finally:
        _end_servers(left)

    assert 0 == found.returncode, found.stderr
    assert report["passed"]
    assert report["proof"]["digest"] == report["proof"]["wanted_digest"]
    assert _SAMPLES == report["proof"]["samples"]
    assert (1, 1) == (report["proof"]["epochs_whole"], report["proof"]["epochs_complete"])
    assert report["kills"] >= 1
    assert report["reconnects"] >= 1
    assert (8, 0) == (report["tokens"]["tokens"], report["tokens"]["wrong"])


def test_an_interrupted_run_reports_what_it_has_read(url: str) -> None:
    """After one Ctrl-C: the proof of what came until then, and the exit code of an interrupt."""
    with server_of({"ds": url}) as server:
        process = subprocess.Popen(
            [
                *(HEADRACE, "loadtest", server.address, "ds", "--ranks", "2", "--batch-size", "10"),
                *("--steps", "100000", "--step-ms", "5", "--manifest", url, "--json"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert until(lambda: server._streams.count == 2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=240)

    assert 130 == process.returncode, err
    report = json.loads(out)
    assert (True, True) == (report["interrupted"], report["proof"]["holds"])
    assert report["proof"]["digest"] == report["proof"]["wanted_digest"]
    assert "interrupted: what was read so far follows" in err


def _end_servers(lines: list[str]) -> None:
    for line in lines:
        os.kill(int(line.rsplit(" ", 1)[1]), signal.SIGKILL)


def test_a_missed_limit_fails(url: str, tmp_path: Path) -> None:
    """Too slow is exit code 1; the table says by how much, and the picture is drawn."""
    picture = tmp_path / "run.png"
    with serving({"ds": url}) as server:
        found = run(
            *("loadtest", server.address, "ds", "--batch-size", "10", "--steps", "5"),
            *("--min-samples-per-s", "1e12", "--max-p99-ms", "1e-9", "--picture", str(picture)),
        )

    assert 1 == found.returncode
    assert "expected at least 1,000,000,000,000" in found.stdout
    assert "the P99 of the wait is" in found.stdout
    assert "FAILED" in found.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def address(url: str) -> Iterator[str]:
    """One server for the tests that only ask."""
    with serving({"ds": url}) as server:
        yield server.address


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lose, "1 batches lost"),
        (repeat, "1 batches repeated"),
        (exchange, "1 batches out_of_order"),
    ],
    ids=["lost", "repeated", "out of order"],
)
def test_what_a_server_does_wrong_fails(address: str, lie: Lie, said: str) -> None:
    """Exit code 1, and the rank to which it happened."""
    with liar(address, lie, sample_count=_SAMPLES) as lying:
        found = run(
            *("loadtest", lying, "ds", "--ranks", "2", "--batch-size", "10", "--steps", "8"),
            *("--tokens", "0"),
        )

    assert 1 == found.returncode, found.stdout
    assert f"job 0 rank 1 of 2: {said}" in found.stdout
    assert "FAILED" in found.stdout


def test_ranks_that_give_up_fail(url: str) -> None:
    """A server that is killed and does not come back: exit code 1, and each rank says why."""
    with serving({"ds": url}) as server:
        # Far more than fits into buffers: what lies there is read without a server.
        found = run(
            *("loadtest", server.address, "ds", "--ranks", "2", "--batch-size", "5"),
            *("--epochs", "1000", "--step-ms", "5", "--give-up-s", "2", "--tokens", "0", "--json"),
            *("--kill", str(server.process.pid), "--every", "0.3"),
        )
    report = json.loads(found.stdout)

    assert 1 == found.returncode, found.stderr
    assert not report["passed"]
    assert 1 == report["kills"]
    assert 2 == len(report["failed"])


def test_faults_of_every_kind_at_once(address: str, url: str) -> None:
    """A straggler, a crash, a black hole, a slow network: proved, and limits that hold pass."""
    found = run(
        *("loadtest", address, "ds", "--ranks", "3", "--jobs", "2", "--batch-size", "20"),
        *("--step-ms", "20", "--processes", "2", "--columns", "number,name", "--end", "uneven"),
        *("--seed", "5", "--shuffle-samples", "300", "--manifest", url, "--tokens", "3"),
        *("--pause-rank", "1:0.2@25%", "--crash-at", "40%"),
        *("--cut-network", "blackhole:0.2", "--cut-network", "bandwidth=10000000"),
        *("--every", "0.3", "--min-samples-per-s", "1", "--max-p99-ms", "100000", "--json"),
    )
    report = json.loads(found.stdout)

    assert 0 == found.returncode, found.stderr
    assert report["proof"]["digest"] == report["proof"]["wanted_digest"]
    assert (2, 2) == (report["proof"]["epochs_whole"], report["proof"]["epochs_complete"])
    assert (3, 0) == (report["tokens"]["tokens"], report["tokens"]["wrong"])
    assert not report["missed_limits"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rescale", "8:6"], "expected one such as 8:6@50%"),
        (["--rescale", "5:6@50%"], "starts from 5 ranks, but there are 8 at that time"),
        (["--rescale", "8:0@50%"], "expected one such as 8:6@50%"),
        (["--restart", "headrace serve"], "--restart needs --kill"),
        (["--pause-rank", "3@25%"], "expected one such as 3:10@25%"),
        (["--cut-network", "latency"], "need a value above 0"),
        (["--cut-network", "blackhole"], "needs a duration, such as blackhole:5"),
        (["--epochs", "1", "--steps", "5"], "exclude one another"),
        (["--batch-size", "10", "--kill", "999999999"], "process 999999999 cannot be killed"),
        (["--batch-size", "9000"], "less than one global batch"),
    ],
)
def test_misuse_says_what_is_wanted(address: str, arguments: list[str], message: str) -> None:
    """One line on standard error, and no trace."""
    found = run("loadtest", address, "ds", *arguments)

    assert found.returncode in (1, 2)
    assert message in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


def test_a_mixture_is_proved(address: str, url: str, tmp_path: Path) -> None:
    """A file names datasets and amounts; its manifest says what each batch must hold."""
    mixture = tmp_path / "mixture.json"
    mixture.write_text(json.dumps({"datasets": [{"name": "ds", "repeat": 1.5}]}))
    found = run(
        *("loadtest", address, "--mixture", str(mixture), "--manifest", url, "--ranks", "2"),
        *("--global-batch-size", "100", "--json"),
    )
    report = json.loads(found.stdout)

    assert 0 == found.returncode, found.stderr
    assert report["proof"]["digest"] == report["proof"]["wanted_digest"]
    assert _SAMPLES * 3 // 2 == report["proof"]["samples"]
    assert (1, 1) == (report["proof"]["epochs_whole"], report["proof"]["epochs_complete"])


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ('{"datasets": [{"name": "ds"}]}', ["ds"], "either DATASET or --mixture"),
        ('{"datasets": [{"name": "ds", "skips": [1]}]}', [], "does not support 'skips'"),
        ('{"datasets": [{"name": "ds"}]}', ["--manifest", "a", "--manifest", "b"], "expected 1"),
        ("{}", [], "expected an object with 'datasets'"),
    ],
)
def test_a_mixture_that_cannot_be_tested_is_refused(
    address: str, tmp_path: Path, text: str, arguments: list[str], message: str
) -> None:
    """One line that says what is wanted."""
    mixture = tmp_path / "mixture.json"
    mixture.write_text(text)
    found = run("loadtest", address, *arguments, "--mixture", str(mixture), "--batch-size", "10")

    assert 2 == found.returncode
    assert message in " ".join(found.stderr.split())


def test_another_version_of_the_data_is_refused(address: str, tmp_path: Path) -> None:
    """A manifest that is not the server's proves nothing, and both fingerprints are named."""
    other = str(tmp_path / "other")
    write_dataset(other, small_table(100), shard_samples=[100])
    found = run("loadtest", address, "ds", "--batch-size", "10", "--manifest", other)

    assert 1 == found.returncode
    assert "has fingerprint" in found.stderr


def test_a_limit_of_a_wait_that_nobody_had_is_missed(address: str) -> None:
    """A run of one batch for each rank says nothing about the waits of a longer one."""
    found = run(
        *("loadtest", address, "ds", "--ranks", "1", "--batch-size", "10"),
        *("--steps", "1", "--max-p99-ms", "1000"),
    )

    assert 1 == found.returncode
    assert "no rank waited for a second batch" in found.stdout


@pytest.mark.parametrize("failed", [(), ("[Errno 8] Exec format error: 'serve.sh'",)])
def test_a_fault_that_could_not_be_caused_fails(
    failed: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without the faults that were asked for proves less than it says."""
    report = LoadReport(
        Summary(), Proof(batches=1), TokenCheck(0, 0), kills=1, limits=(), failed_faults=failed
    )

    report.show()
    shown = capsys.readouterr().out

    assert report.passed == (not failed)
    assert list(failed) == json.loads(report.as_json())["failed_faults"]
    assert all(f"a fault could not be caused: {each}" in shown for each in failed)
