"""Tests of the options of `headrace serve`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import grpc
import yaml
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.cli.serve import command
from headrace.server.settings.config_layers import server_settings
from headrace.server.settings.from_mapping import stated_fields
from support.command import run, serving
from support.datasets import small_table, write_dataset
from support.waiting import until


def _every_name() -> set[str]:
    return {one.name for kind in server_settings() for one in stated_fields(kind)}


def test_every_setting_has_an_option() -> None:
    """What the server can be told it can be told on the command line."""
    options = {option.name for option in command.params}

    assert _every_name() <= options


def test_help_says_where_the_cache_size_comes_from() -> None:
    """The help relates the size of the cache to what is shuffled."""
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())

    assert "3 GiB, holds the 2 GiB that one job with default options shuffles together" in text
    assert "[default: 3GiB]" in text


def test_a_good_configuration_is_checked_and_shown(tmp_path: Path) -> None:
    """`--check-config` opens the datasets, says what is in them, and prints all settings."""
    url, file = str(tmp_path / "d"), tmp_path / "headrace.yaml"
    manifest = write_dataset(url, small_table(20), shard_samples=[20])
    file.write_text(f"datasets: {{d: {url}}}\ndrain_s: 7\n")

    done = run("serve", "--config", str(file), "--check-config", "--max-streams", "5")

    shown = yaml.safe_load(done.stdout)
    assert 0 == done.returncode
    assert (7.0, 5, {"d": url}) == (shown["drain_s"], shown["max_streams"], shown["datasets"])
    assert _every_name() == set(shown)
    assert f"good: dataset d: 20 samples, fingerprint {manifest.fingerprint}" in done.stderr


def test_an_address_given_twice_replaces_none(tmp_path: Path) -> None:
    """`--listen` may be repeated, or hold several with commas; all are listened on."""
    url = str(tmp_path / "d")
    write_dataset(url, small_table(20), shard_samples=[20])
    listen = ("--listen", "127.0.0.1:1,127.0.0.1:2", "--listen", f"unix:{tmp_path}/s")

    shown = yaml.safe_load(run("serve", f"d={url}", "--check-config", *listen).stdout)

    assert "127.0.0.1:1,127.0.0.1:2" in str(shown["listen"]).replace("', '", ",")
    assert f"unix:{tmp_path}/s" in str(shown["listen"])


def test_a_bad_configuration_is_told_whole(tmp_path: Path) -> None:
    """A wrong setting ends with 2; datasets that cannot be opened are all named, and end with 1."""
    wrong = run("serve", f"a={tmp_path}/1", "--check-config", "--tls-cert", "no")

    assert 2 == wrong.returncode
    assert "tls_cert and tls_key belong together" in wrong.stderr

    done = run("serve", f"a={tmp_path}/1", f"b={tmp_path}/2", "--check-config")
    bad = [line for line in done.stderr.splitlines() if line.startswith("bad:")]
    assert (1, 2) == (done.returncode, len(bad))


def test_a_hangup_reads_the_file_again(tmp_path: Path) -> None:
    """SIGHUP adds the dataset that the file names now to the running server, which logs JSON."""
    url, file = str(tmp_path / "d"), tmp_path / "headrace.yaml"
    write_dataset(url, small_table(20), shard_samples=[20])
    file.write_text("")
    log = tmp_path / "log"

    with (
        log.open("w") as stderr,
        serving({"d": url}, "--config", str(file), "--log-format", "json", stderr=stderr) as at,
        grpc.insecure_channel(at.address) as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check

        def is_served() -> bool:
            try:
                return bool(check(health_pb2.HealthCheckRequest(service="e"), timeout=60).status)
            except grpc.RpcError:
                return False

        assert not is_served()
        file.write_text(f"datasets: {{e: {url}}}\n")
        at.process.send_signal(signal.SIGHUP)
        assert until(is_served, timeout_s=240)

    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"dataset served", "configuration read again"} <= {one["message"] for one in events}
