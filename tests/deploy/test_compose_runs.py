"""docker-compose.yml on a real engine: the whole product, under load and under fire."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from support.engine import Project, docker, project
from support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

_START_S = 600.0


@pytest.fixture(scope="module")
def running() -> Iterator[Project]:
    """The whole project, started as a user would."""
    with project() as found:
        found.compose("up", "--detach", "--no-build", *found.services, timeout_s=_START_S)
        yield found


def _logs(running: Project, service: str) -> str:
    return running.compose("logs", "--no-log-prefix", service)


def test_the_training_ends_well_though_a_server_is_killed(running: Project) -> None:
    """The trainer sees every sample of two epochs, learns, and ends with 0."""
    trainer = running.containers("trainer")[0]
    assert until(lambda: "step 60 " in _logs(running, "trainer"), timeout_s=_START_S)
    victim = running.containers("headrace")[0]
    docker("kill", "--signal", "KILL", victim)
    docker("start", victim)
    _wait_healthy(victim)

    assert "0" == docker("wait", trainer, timeout_s=_START_S).strip()
    accuracy = re.search(r"epoch 1 done, test accuracy (0\.\d+)", _logs(running, "trainer"))
    assert accuracy is not None
    assert float(accuracy[1]) > 0.89


def _loadtest(running: Project, *options: str) -> dict[str, object]:
    """Read as six trainers inside the project's network, and return the proof."""
    return json.loads(  # type: ignore[no-any-return] # an object, as its test says
        running.compose(
            *("run", "--rm", "--no-deps", "-T", "headrace", "loadtest", "dns:///headrace:50051"),
            *("flights-train", "--manifest", "s3://shards/flights-train", "--ranks", "6"),
            # Large batches, so that streams go on as long as steps do, and are not read in advance.
            *("--processes", "1", "--batch-size", "4096", "--step-ms", "200", "--json", *options),
            timeout_s=_START_S,
        )
    )


def _under_load(running: Project, steps: int, action: Callable[[], None]) -> dict[str, object]:
    """Do something while trainers read; return their proof."""
    found: list[dict[str, object]] = []
    load = threading.Thread(
        target=lambda: found.append(_loadtest(running, "--steps", str(steps))), name="test-load"
    )
    load.start()
    try:
        action()
    finally:
        load.join(_START_S)
    assert found, "the load test failed"
    return found[0]


def _wait_healthy(container: str) -> None:
    state = "{{.State.Health.Status}}"
    assert until(
        lambda: docker("inspect", "--format", state, container).strip() == "healthy", timeout_s=120
    )


def _streams(running: Project) -> list[int]:
    """Open streams of each replica."""
    program = (
        "import re,urllib.request as u; t=u.urlopen('http://127.0.0.1:9090/metrics').read().decode();"
        "print(int(float(re.search(r'^headrace_open_streams(?:{.*})? (.*)$', t, re.M)[1])))"
    )
    return [
        int(docker("exec", container, "python3", "-c", program))
        for container in running.containers("headrace")
    ]


def test_a_rolling_restart_under_load_is_not_noticed(running: Project) -> None:
    """Each replica is drained and started again; every sample comes once, in order, as planned."""

    def restart_all() -> None:
        assert until(lambda: sum(_streams(running)) == 6, timeout_s=120)
        for container in running.containers("headrace"):
            docker("restart", "--time", "40", container)
            _wait_healthy(container)

    report = _under_load(running, 500, restart_all)

    assert report["passed"], report
    assert report["proof"]["digest"] == report["proof"]["wanted_digest"]  # type: ignore[index] # JSON
    assert report["reconnects"]


def test_three_replicas_take_two_streams_each(running: Project) -> None:
    """A third replica under load is found by name, and gets its share within max_stream_s."""

    def scale() -> None:
        running.compose(
            "up", "--detach", "--no-build", "--no-deps", "--scale", "headrace=3", "headrace"
        )
        for container in running.containers("headrace"):
            _wait_healthy(container)
        # max_stream_s is 60, give or take 20 %.
        assert until(lambda: _streams(running) == [2, 2, 2], timeout_s=100), _streams(running)

    report = _under_load(running, 700, scale)

    assert report["passed"], report


@pytest.mark.parametrize("service", ["store", "headrace", "prometheus"])
def test_containers_may_do_little(running: Project, service: str) -> None:
    """The kernel says so: no root, no capability, nothing to write to, and the limit of memory."""
    if service not in running.services:
        pytest.skip(f"the image of {service} is neither here nor to be pulled")
    container = running.containers(service)[0]
    status = docker("exec", container, "cat", "/proc/1/status")
    wrote = docker(
        "exec", container, "sh", "-c", "touch /usr/x /x 2>/dev/null && echo yes || echo no"
    )
    limit = docker("inspect", "--format", "{{.HostConfig.Memory}}", container)

    assert re.search(r"^Uid:\s+(65532|65534)\b", status, re.MULTILINE)
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert "no" == wrote.strip()
    assert 0 < int(limit) <= 1 << 30


def test_the_servers_image_holds_no_torch(running: Project) -> None:
    """Nor Spark."""
    program = "import importlib.util as u; print([u.find_spec(n) for n in ('torch', 'pyspark')])"

    said = docker("exec", running.containers("headrace")[0], "python3", "-c", program)

    assert "[None, None]" == said.strip()


def test_images_say_what_they_are(running: Project) -> None:
    """OCI labels, and a bill of the packages that Python finds in the image."""
    container = running.containers("headrace")[0]
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", container))
    listing = "import importlib.metadata as m; print(*{d.name.lower() for d in m.distributions()})"

    bill = json.loads(docker("exec", container, "cat", "/opt/headrace/sbom.cdx.json"))
    installed = docker("exec", container, "python3", "-c", listing).split()

    assert "Apache-2.0" == labels["org.opencontainers.image.licenses"]
    assert {"version", "revision", "created"} < {name.rpartition(".")[2] for name in labels}
    assert {one["name"].lower() for one in bill["components"]} == set(installed)


def _query(address: str, query: str) -> list[dict[str, object]]:
    url = f"http://{address}/api/v1/query?{urlencode({'query': query})}"
    with urlopen(url, timeout=60) as answer:
        result = json.load(answer)["data"]["result"]
    assert isinstance(result, list)
    return result


def test_prometheus_watches_every_replica(running: Project) -> None:
    """It finds the replicas by name, and its rules of ours are evaluated without a fault."""
    if "prometheus" not in running.services:
        pytest.skip("the image of Prometheus is neither here nor to be pulled")
    address = running.address("prometheus", 9090)
    replicas = len(running.containers("headrace"))

    assert until(lambda: len(_query(address, "up{job='headrace'} == 1")) == replicas, timeout_s=60)
    with urlopen(f"http://{address}/api/v1/rules", timeout=60) as answer:
        groups = json.load(answer)["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert [] == [rule["name"] for rule in rules if rule["health"] == "err"]


def test_grafana_has_the_dashboard(running: Project) -> None:
    """It shows the dashboard of this repository to everybody on this machine."""
    if "grafana" not in running.services:
        pytest.skip("the image of Grafana is neither here nor to be pulled")
    address = running.address("grafana", 3000)

    def found() -> list[str]:
        with urlopen(f"http://{address}/api/search?type=dash-db", timeout=60) as answer:
            return [one["title"] for one in json.load(answer)]

    assert until(found, timeout_s=60)
