"""What `kubectl kustomize` makes of deploy/kubernetes, against the real schemas and the docs."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headrace.server import ConfigSource

_FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
_KUBECTL = Path(sys.executable).parent / "kubectl"
_OVERLAYS = ("base", "overlays/autoscaled", "overlays/tls", "overlays/sidecar")
_CLUSTERS = ("1.31", "1.33", "1.35")
_FOREIGN = ("ServiceMonitor", "Certificate", "PyTorchJob", "SparkApplication")
"""Kinds that operators bring; their schemas are not Kubernetes' own."""

Manifest = dict[str, Any]


@cache
def _render(overlay: str) -> tuple[Manifest, ...]:
    done = subprocess.run(
        [_KUBECTL, "kustomize", str(_FOLDER / overlay)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def _of_kind(overlay: str, kind: str) -> Manifest:
    (found,) = [one for one in _render(overlay) if one["kind"] == kind]
    return found


def _pods() -> list[tuple[str, Manifest]]:
    """Every pod of every overlay and example, by where it stands."""
    pods = [(name, _of_kind(name, "StatefulSet")["spec"]["template"]) for name in _OVERLAYS[:3]]
    job = _of_kind("overlays/sidecar", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]
    remote = yaml.safe_load((_FOLDER / "examples" / "trainjob.yaml").read_text())
    remote_job = remote["spec"]["pytorchReplicaSpecs"]["Worker"]
    return [*pods, ("sidecar", job["template"]), ("trainjob", remote_job["template"])]


@pytest.mark.parametrize("cluster", _CLUSTERS)
@pytest.mark.parametrize("overlay", _OVERLAYS)
def test_manifests_are_what_kubernetes_knows(overlay: str, cluster: str) -> None:
    """Every field exists in the schemas of three releases; operators' kinds are left out."""
    known = [one for one in _render(overlay) if one["kind"] not in _FOREIGN]
    for manifest in known:
        kubernetes_validate.validate(manifest, cluster, strict=True)

    assert known


@pytest.mark.parametrize(("name", "pod"), _pods(), ids=[name for name, _ in _pods()])
def test_pods_pass_the_restricted_standard(name: str, pod: Manifest) -> None:
    """Each pod is one that Kubernetes knows, and each container is as the standard asks."""
    labels = {"metadata": {"name": "pod", **pod.get("metadata", {})}}
    whole = {"apiVersion": "v1", "kind": "Pod", **labels, "spec": pod["spec"]}
    kubernetes_validate.validate(whole, _CLUSTERS[1], strict=True)
    context = pod["spec"]["securityContext"]
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]

    assert context["runAsNonRoot"], name
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all(not one["securityContext"]["allowPrivilegeEscalation"] for one in containers)
    assert all(one["securityContext"]["capabilities"] == {"drop": ["ALL"]} for one in containers)
    ours = [one for one in containers if "headrace-server" in one["image"]]
    assert all(one["securityContext"]["readOnlyRootFilesystem"] for one in ours)
    assert all("memory" in one["resources"]["limits"] for one in containers)
    mounts = {mount["name"] for one in containers for mount in one.get("volumeMounts", [])}
    volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
    assert mounts <= volumes | {"cache"}, "a volume is mounted that nobody declares"


@pytest.mark.parametrize("overlay", _OVERLAYS)
def test_the_settings_are_the_servers(overlay: str, tmp_path: Path) -> None:
    """The server takes the file of the ConfigMap, and addresses and folders fit the pod."""
    settings = _of_kind(overlay, "ConfigMap")["data"]["headrace.yaml"]
    path = tmp_path / "headrace.yaml"
    path.write_text(settings)
    for old in re.findall(r"^(?:tls_cert|tls_key|tokens): (\S+)", settings, re.MULTILINE):
        assert old.startswith("/etc/headrace-")

    config = ConfigSource(path).load()

    assert ["flights"] == list(config.datasets)
    if overlay == "overlays/sidecar":
        assert ("unix:/run/headrace/server.sock",) == config.addresses
        assert 0o660 == config.unix_mode
        return
    pod = _of_kind(overlay, "StatefulSet")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert (f"0.0.0.0:{ports['grpc']}",) == config.addresses
    assert f"0.0.0.0:{ports['metrics']}" == config.metrics_listen
    assert pod["terminationGracePeriodSeconds"] > config.drain_s + 5
    mounts = [mount["mountPath"] for mount in server["volumeMounts"]]
    assert str(config.cache_dir) in mounts


def _server_of(overlay: str) -> Manifest:
    """The container that serves."""
    if overlay == "overlays/sidecar":
        job = _of_kind(overlay, "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]
        (found,) = job["template"]["spec"]["initContainers"]
    else:
        (found,) = _of_kind(overlay, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("overlay", _OVERLAYS)
def test_memory_is_that_of_the_formula(overlay: str, tmp_path: Path) -> None:
    """The limit is docs/operations.md's formula and some 10 % more; batches of 1 MiB never wait."""
    path = tmp_path / "headrace.yaml"
    path.write_text(_of_kind(overlay, "ConfigMap")["data"]["headrace.yaml"])
    config = ConfigSource(path).load()
    formula = (_FOLDER.parents[1] / "docs" / "operations.md").read_text()
    limit = int(_server_of(overlay)["resources"]["limits"]["memory"].removesuffix("Mi"))
    reads = config.fetch_threads * (8 + 1)
    payloads = config.payload_bytes // 2**20
    wanted = 220 + config.cache_bytes // 2**20 + reads + payloads + config.max_streams * 4
    # One for each of eight ranks of a host; over the network there are none.
    rings = 8 * config.ring_bytes // 2**20 if overlay == "overlays/sidecar" else 0

    assert "fetch_threads \N{MULTIPLICATION SIGN} R" in formula
    assert "payload_bytes + streams \N{MULTIPLICATION SIGN} 4 MiB" in formula
    assert payloads == config.max_streams * (4 * 1 + 2 * 3) + rings
    assert wanted * 1.1 <= limit <= wanted * 1.15


def test_a_sidecar_has_memory_for_its_rings() -> None:
    """The last of eight rings is no more than a quarter of what the limit leaves (docs/ring.md)."""
    settings = yaml.safe_load(_of_kind("overlays/sidecar", "ConfigMap")["data"]["headrace.yaml"])
    limit = int(_server_of("overlays/sidecar")["resources"]["limits"]["memory"].removesuffix("Mi"))
    ring = int(settings["ring_bytes"].removesuffix("MiB"))

    left = limit - 1024 * int(settings["cache_bytes"].removesuffix("GiB")) - 7 * ring

    assert ring <= left / 4
    pod = _of_kind("overlays/sidecar", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert settings["ring_uids"] == str(pod["template"]["spec"]["securityContext"]["runAsUser"])


def test_selectors_and_ports_agree() -> None:
    """Service, set, budget and policy name the same pods; the policy opens the service's ports."""
    rendered = {one["kind"]: one for one in _render("overlays/autoscaled")}
    labels = rendered["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        rendered["Service"]["spec"]["selector"],
        rendered["StatefulSet"]["spec"]["selector"]["matchLabels"],
        rendered["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        rendered["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        rendered["ServiceMonitor"]["spec"]["selector"]["matchLabels"],
    ]
    opened = [rule["ports"][0]["port"] for rule in rendered["NetworkPolicy"]["spec"]["ingress"]]
    target = rendered["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    example = yaml.safe_load((_FOLDER / "examples" / "trainjob.yaml").read_text())
    worker = example["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    admitted = rendered["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]["podSelector"]

    assert all(selector.items() <= labels.items() for selector in selectors)
    assert [port["port"] for port in rendered["Service"]["spec"]["ports"]] == opened
    assert "None" == rendered["Service"]["spec"]["clusterIP"]
    assert ("StatefulSet", "headrace") == (target["kind"], target["name"])
    assert admitted["matchLabels"].items() <= worker["metadata"]["labels"].items()


def test_the_sidecar_is_native_and_shares_its_socket() -> None:
    """An init container that is restarted always, a socket in a shared volume, and no port."""
    job = _of_kind("overlays/sidecar", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]
    pod = job["template"]["spec"]
    (sidecar,), (trainer,) = pod["initContainers"], pod["containers"]
    shared = [
        {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
        for one in (sidecar, trainer)
    ]

    assert "Always" == sidecar["restartPolicy"]
    assert "ports" not in sidecar
    assert "/run/headrace" == shared[0]["socket"] == shared[1]["socket"]
    assert {"name": "HEADRACE_TARGET", "value": "unix:/run/headrace/server.sock"} in trainer["env"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_the_autoscalers_metric_is_recorded() -> None:
    """What the autoscaler asks for is a rule of ours."""
    rules = (_FOLDER.parent / "prometheus" / "rules.yml").read_text()
    metrics = _of_kind("overlays/autoscaled", "HorizontalPodAutoscaler")["spec"]["metrics"]
    names = [one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods"]

    assert ["headrace_starving_share"] == names
    assert "record: headrace:starving:share" in rules
