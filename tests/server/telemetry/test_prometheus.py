"""A real Prometheus scrapes a real server, and the questions of docs/monitoring.md have answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import grpc
import pytest

from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.running import server_of
from support.served import messages_of, read_until_failure
from support.waiting import until

pytestmark = pytest.mark.long

_ROOT = Path(__file__).parents[3]
_MONITORING = _ROOT / "docs" / "monitoring.md"
_CHART = _ROOT / "deploy" / "helm" / "headrace" / "files"
_DASHBOARD = _CHART / "dashboard.json"
_QUESTION = re.compile(r"^\| [^|]+ \| `(?P<query>[^`]*(?:headrace|process)_[^`]*)`", re.MULTILINE)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian, Ubuntu: apt-get install prometheus)")
    return found


@contextmanager
def _prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run Prometheus on one target; give its address."""
    config = folder / "prometheus.yml"
    job = {"job_name": "headrace", "static_configs": [{"targets": [target]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    log = folder / "log"
    command = [_program("prometheus"), f"--config.file={config}"]
    command += [f"--storage.tsdb.path={folder}/db", "--log.format=json"]
    with log.open("w") as output:
        process = subprocess.Popen(
            # Port 0: it says in its log which one it took.
            [*command, "--web.listen-address=127.0.0.1:0"],
            stderr=output,
        )
        try:
            address = _address(log)
            assert until(partial(_is_ready, address)), log.read_text()[-2000:]
            yield address
        finally:
            process.terminate()
            process.wait(60)


def _address(log: Path) -> str:
    found = until(lambda: re.search(r'"address":"(127\.0\.0\.1:[1-9]\d*)"', log.read_text()))
    assert found, log.read_text()[-2000:]
    return found[1]


def _is_ready(api: str) -> bool:
    try:
        with urlopen(f"http://{api}/-/ready", timeout=60):
            return True
    except HTTPError:  # 503 while it starts
        return False


def _query(api: str, query: str) -> list[dict[str, object]]:
    with urlopen(f"http://{api}/api/v1/query?{urlencode({'query': query})}", timeout=10) as answer:
        found = json.load(answer)
    assert found["status"] == "success", query
    result = found["data"]["result"]
    assert isinstance(result, list)
    return result


def _keep_reading(channel: grpc.Channel, ended: threading.Event) -> None:
    """Stream, and make a call fail for its name and one for its store, until told to stop."""
    going = messages_of(channel, _endless("good"))
    while not ended.wait(0.01):
        next(going)
        for name in ("bad", "unknown"):
            read_until_failure(messages_of(channel, _endless(name)))


def _endless(name: str) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset=name, global_batch_size=50, world_size=1, epoch_start=pb.EpochStart()
    )


def _dashboard_queries() -> list[str]:
    panels = json.loads(_DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    return [query.replace("$instance", ".*") for query in queries]


def test_every_question_of_the_page_has_an_answer(
    rich_url: str, broken_url: str, tmp_path: Path
) -> None:
    """All queries of docs/monitoring.md and of the dashboard return data of a server with load."""
    queries = [found["query"] for found in _QUESTION.finditer(_MONITORING.read_text())]
    queries += _dashboard_queries()
    assert len(queries) >= 24
    ended = threading.Event()
    with (
        server_of({"good": rich_url, "bad": broken_url}, metrics_listen="127.0.0.1:0") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        shutil.rmtree(Path(broken_url) / "shards")
        reader = threading.Thread(target=_keep_reading, args=(channel, ended), name="test-load")
        reader.start()
        try:
            with _prometheus(tmp_path, server.metrics_address) as api:
                assert until(lambda: _query(api, "up == 1"))
                answers = {query: until(partial(_query, api, query)) for query in queries}
        finally:
            ended.set()
            reader.join(60)

    assert [] == [query for query, answer in answers.items() if not answer]


def test_the_exposition_is_as_promtool_wants_it(start: StartServer) -> None:
    """The checker of Prometheus finds nothing to complain of in names, units and helps."""
    running = start(metrics_listen="127.0.0.1:0")
    with urlopen(f"http://{running.server.metrics_address}/metrics", timeout=60) as answer:
        text = answer.read()

    done = subprocess.run(
        [_program("promtool"), "check", "metrics"], input=text, capture_output=True, check=False
    )

    assert (0, "") == (done.returncode, done.stderr.decode() + done.stdout.decode())


@pytest.mark.parametrize(
    "check", [["check", "rules", str(_CHART / "rules.yml")], ["test", "rules", "rules_test.yml"]]
)
def test_rules_do_what_their_tests_say(check: list[str]) -> None:
    """The rules are well-formed, and every alert fires when it should and not before."""
    done = subprocess.run(
        [_program("promtool"), *check],
        cwd=_ROOT / "deploy" / "prometheus",
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
