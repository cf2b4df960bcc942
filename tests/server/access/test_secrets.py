"""No secret that a server is given comes out of it: not in logs, answers, metrics or settings."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from urllib.request import urlopen

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.command import run, serving
from support.datasets import small_table, write_dataset
from support.s3 import S3
from support.served import TIMEOUT_S, epoch_request, messages_of, read_until_failure, stub_of
from support.waiting import until

_BEARER, _WRONG = "bearer-of-the-test-0123456789", "wrong-bearer-0123456789"
_SECRETS = {
    "bearer": _BEARER,
    "wrong bearer": _WRONG,
    "wrong key of a store": "wrong-key-of-a-store-0123",
    "password in a URL": "password-in-a-url-0123",
    "signature in a URL": "signature-in-a-url-0123",
}


def _config(s3: S3, folder: Path, *, bad: bool) -> str:
    def dataset(secret: str) -> dict[str, object]:
        store = {
            "endpoint": s3.weed.endpoint,
            "region": "us-east-1",
            "access_key": s3.weed.reader_access_key,
            "secret_key": secret,
            "session_token": None,
        }
        return {"url": s3.url("d"), "store": store}

    datasets = {"d": dataset(s3.weed.reader_secret_key)}
    if bad:
        user, query = _SECRETS["password in a URL"], _SECRETS["signature in a URL"]
        datasets["wrong"] = dataset(_SECRETS["wrong key of a store"])
        datasets["odd"] = {"url": f"https://me:{user}@localhost:1/x?signature={query}"}
    entry = {"name": "reader", "token": _BEARER, "datasets": ["d"]}
    (folder / "tokens.json").write_text(json.dumps({"tokens": [entry]}))
    # JSON is YAML.
    return json.dumps({"datasets": datasets, "tokens": str(folder / "tokens.json")})


def _said_to_callers(address: str) -> str:
    """Read well, with a wrong token, and with none; return all that is said."""
    said = []
    request = epoch_request(dataset="d", global_batch_size=5)
    with grpc.insecure_channel(address) as channel:
        call = stub_of(channel).ReadBatches
        for token in (_BEARER, _WRONG):
            metadata = (("authorization", f"Bearer {token}"),)
            try:
                said += [str(one) for one in call(request, timeout=TIMEOUT_S, metadata=metadata)]
            except grpc.RpcError as error:
                said.append(f"{error} {error.trailing_metadata()}")
        said.append(str(read_until_failure(messages_of(channel, request))[1]))
        health = health_pb2_grpc.HealthStub(channel)
        said.append(str(health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)))
    return "\n".join(said)


def test_nothing_that_a_server_says_holds_a_secret(s3: S3, tmp_path: Path) -> None:
    """At the loudest level, through good and refused calls, a failed reload and damaged files."""
    write_dataset(s3.url("d"), small_table(20), shard_samples=[20])
    file, log = tmp_path / "headrace.yaml", tmp_path / "log"
    file.write_text(_config(s3, tmp_path, bad=False))
    metrics = "127.0.0.1:0"
    options = ("--config", str(file), "--log-level", "debug", "--metrics-listen", metrics)

    with log.open("w") as stderr, serving({}, *options, stderr=stderr) as server:
        said = _said_to_callers(server.address)
        file.write_text(_config(s3, tmp_path, bad=True))
        server.process.send_signal(signal.SIGHUP)
        assert until(lambda: "whole=False" in log.read_text())
        file.write_text(f"datasets: [{_BEARER}")
        (tmp_path / "tokens.json").write_text(f'{{"tokens": ["{_BEARER}"')
        server.process.send_signal(signal.SIGHUP)
        assert until(lambda: "was not changed" in log.read_text())
        said += _said_to_callers(server.address)
        with urlopen(f"http://{_metrics_address(log)}/metrics", timeout=10) as answer:
            said += answer.read().decode()
        said += server.ready_line
    file.write_text(_config(s3, tmp_path, bad=True))
    checked = run("serve", "--config", str(file), "--check-config")

    said += log.read_text() + checked.stdout + checked.stderr
    secrets = {**_SECRETS, "key of a store": s3.weed.reader_secret_key}
    assert [] == [name for name, secret in secrets.items() if secret in said]
    # And it did say what went on.
    assert all(word in said for word in ("stream ended", "dataset=wrong", "dataset=odd", "payload"))


def _metrics_address(log: Path) -> str:
    found = re.search(r"metrics=(\S+)", log.read_text())
    assert found
    return found[1]
