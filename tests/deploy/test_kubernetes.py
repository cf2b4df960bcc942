"""What `kubectl kustomize` makes of deploy/kubernetes, against the real schemas and the docs."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from headrace.server import ConfigSource
from headrace.server.front.health import LIVE
from headrace.server.process.start_warnings import start_warnings
from headrace.server.transports.ring import RingSettings
from support.kustomize import KUBERNETES, Manifest, of_kind, render

_SERVICES = ("base", "overlays/autoscaled", "overlays/tls", "overlays/autoscaled-tls")
_OVERLAYS = (*_SERVICES, "overlays/sidecar")
_LOWEST = "1.30"
"""The first release whose clusters know `preStop.sleep` unless told otherwise."""
_CLUSTERS = (_LOWEST, "1.33", "1.35")
_KUBERNETES = frozenset({"", "apps", "autoscaling", "networking.k8s.io", "policy"})
"""Groups of the API that need no operator."""
_README = KUBERNETES.parent / "README.md"


def _of_kind(overlay: str, kind: str) -> Manifest:
    return of_kind(render(overlay), kind)


def _foreign(manifest: Manifest) -> bool:
    """Whether an operator brings the kind, whose schema is then not Kubernetes' own."""
    return manifest["apiVersion"].rpartition("/")[0] not in _KUBERNETES


def _example(name: str) -> tuple[Manifest, ...]:
    return tuple(yaml.safe_load_all((KUBERNETES / "examples" / name).read_text()))


def _trainers() -> dict[str, Manifest]:
    """The pods of the examples that read over the network."""
    (old,), (tls,) = _example("pytorchjob.yaml"), _example("tlstrainer.yaml")
    runtime, _ = _example("trainjob.yaml")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return {
        "pytorchjob": old["spec"]["pytorchReplicaSpecs"]["Worker"]["template"],
        "tlstrainer": tls["spec"]["pytorchReplicaSpecs"]["Worker"]["template"],
        "trainjob": job["template"]["spec"]["template"],
    }


def _pods() -> list[tuple[str, Manifest]]:
    """Every pod of every overlay and example, by where it stands."""
    pods = [(name, _of_kind(name, "StatefulSet")["spec"]["template"]) for name in _SERVICES]
    job = _of_kind("overlays/sidecar", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]
    return [*pods, ("sidecar", job["template"]), *_trainers().items()]


@pytest.mark.parametrize("cluster", _CLUSTERS)
@pytest.mark.parametrize("overlay", _OVERLAYS)
def test_manifests_are_what_kubernetes_knows(overlay: str, cluster: str) -> None:
    """Every field exists in the schemas of three releases; operators' kinds are left out."""
    known = [one for one in render(overlay) if not _foreign(one)]
    for manifest in known:
        kubernetes_validate.validate(manifest, cluster, strict=True)

    assert known


@pytest.mark.parametrize(("name", "pod"), _pods(), ids=[name for name, _ in _pods()])
def test_pods_pass_the_restricted_standard(name: str, pod: Manifest) -> None:
    """Each pod is one that Kubernetes knows, and each container is as the standard asks."""
    labels = {"metadata": {"name": "pod", **pod.get("metadata", {})}}
    whole = {"apiVersion": "v1", "kind": "Pod", **labels, "spec": pod["spec"]}
    kubernetes_validate.validate(whole, _LOWEST, strict=True)
    context = pod["spec"]["securityContext"]
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]

    assert context["runAsNonRoot"], name
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all(not one["securityContext"]["allowPrivilegeEscalation"] for one in containers)
    assert all(one["securityContext"]["capabilities"] == {"drop": ["ALL"]} for one in containers)
    ours = [one for one in containers if "headrace-server" in one["image"]]
    assert all(one["securityContext"]["readOnlyRootFilesystem"] for one in ours)
    limits = [one["resources"]["limits"] for one in containers]
    assert all({"memory", "ephemeral-storage"} <= set(limit) for limit in limits)
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
    warnings = " ".join(start_warnings(config))
    is_open = overlay in {"base", "overlays/autoscaled"}
    assert is_open == ("may read every dataset: there are neither tokens nor" in warnings)
    assert "clear text" not in warnings
    if overlay == "overlays/sidecar":
        assert ("unix:/run/headrace/server.sock",) == config.addresses
        assert 0o660 == config.unix_mode
        return
    pod = _of_kind(overlay, "StatefulSet")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert (f"0.0.0.0:{ports['grpc']}",) == config.addresses
    assert f"0.0.0.0:{ports['health']}" == config.health_listen
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
    """The limit is docs/limits.md's formula and some 10 % more; batches of 1 MiB never wait."""
    path = tmp_path / "headrace.yaml"
    path.write_text(_of_kind(overlay, "ConfigMap")["data"]["headrace.yaml"])
    config = ConfigSource(path).load()
    formula = (KUBERNETES.parents[1] / "docs" / "limits.md").read_text()
    limit = int(_server_of(overlay)["resources"]["limits"]["memory"].removesuffix("Mi"))
    reads = min(config.fetch_threads * 8, 128) + config.fetch_threads
    payloads = config.payload_bytes // 2**20
    wanted = 195 + config.cache_bytes // 2**20 + reads + payloads + config.max_streams * 4
    # One for each of eight ranks of a host; over the network there are none.
    rings = (
        8 * config.of_plug(RingSettings).ring_bytes // 2**20 if overlay == "overlays/sidecar" else 0
    )

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


def _policies(overlay: str) -> dict[str, Manifest]:
    """The specs of the network policies, by name."""
    found = [one for one in render(overlay) if one["kind"] == "NetworkPolicy"]
    return {one["metadata"]["name"]: one["spec"] for one in found}


def test_selectors_and_ports_agree() -> None:
    """Service, set, budget and policies name the same pods; a policy opens the service's ports."""
    rendered = {one["kind"]: one for one in render("overlays/autoscaled")}
    labels = rendered["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    policies = _policies("overlays/autoscaled")
    selectors = [
        rendered["Service"]["spec"]["selector"],
        rendered["StatefulSet"]["spec"]["selector"]["matchLabels"],
        rendered["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        *(policy["podSelector"]["matchLabels"] for policy in policies.values()),
        rendered["ServiceMonitor"]["spec"]["selector"]["matchLabels"],
    ]
    opened = [rule["ports"][0]["port"] for rule in policies["headrace"]["ingress"]]
    target = rendered["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]

    assert all(selector.items() <= labels.items() for selector in selectors)
    assert [port["port"] for port in rendered["Service"]["spec"]["ports"]] == opened
    assert "None" == rendered["Service"]["spec"]["clusterIP"]
    assert ("StatefulSet", "headrace") == (target["kind"], target["name"])


def test_trainers_of_other_namespaces_are_let_in_by_two_labels() -> None:
    """A pod's own label does in the server's namespace; elsewhere the namespace needs one too."""
    here, elsewhere = _policies("base")["headrace"]["ingress"][0]["from"]

    # Two entries would let in every pod of such a namespace: both labels stand in one.
    assert {"podSelector"} == set(here)
    assert {"podSelector", "namespaceSelector"} == set(elsewhere)
    assert {"headrace.io/clients": "true"} == elsewhere["namespaceSelector"]["matchLabels"]
    for peer in (here, elsewhere):
        admitted = peer["podSelector"]["matchLabels"]
        assert admitted, "an empty selector is every pod"
        for trainer in _trainers().values():
            assert admitted.items() <= trainer["metadata"]["labels"].items()


@pytest.mark.parametrize("overlay", _SERVICES)
def test_servers_connect_to_names_stores_and_traces_alone(overlay: str) -> None:
    """Every rule names peers and ports, and the address of a node's credentials is in none."""
    policy = _policies(overlay)["headrace-egress"]
    ports = [{port["port"] for port in rule["ports"]} for rule in policy["egress"]]
    blocks = [
        peer["ipBlock"] for rule in policy["egress"] for peer in rule["to"] if "ipBlock" in peer
    ]
    metadata = [ip_address("169.254.169.254"), ip_address("fd00:ec2::254")]

    assert ["Egress"] == policy["policyTypes"]
    assert [{53}, {443}, {4317}] == ports
    assert all(rule["to"] for rule in policy["egress"])
    assert [] == [
        (address, block)
        for address in metadata
        for block in blocks
        if address in ip_network(block["cidr"])
        and not any(address in ip_network(one) for one in block.get("except", []))
    ]


def test_the_autoscaler_alone_says_how_many() -> None:
    """Applying the overlay again leaves the number as it is: the set has no `replicas`."""
    autoscaled = _of_kind("overlays/autoscaled", "StatefulSet")["spec"]
    autoscaler = _of_kind("overlays/autoscaled", "HorizontalPodAutoscaler")["spec"]
    plain = _of_kind("base", "StatefulSet")["spec"]

    assert "replicas" not in autoscaled
    assert {**plain, "replicas": None} == {**autoscaled, "replicas": None}
    assert plain["replicas"] == autoscaler["minReplicas"]


def test_the_lowest_version_is_the_one_that_is_stated() -> None:
    """1.30 in the README; before, `preStop.sleep` is unknown or off, and 1.28 has no such field."""
    stated = re.search(r"Kubernetes (\d\.\d+) or newer", _README.read_text())
    statefulset = _of_kind("base", "StatefulSet")

    assert stated is not None
    assert _LOWEST == stated[1]
    with pytest.raises(kubernetes_validate.ValidationError, match="sleep"):
        kubernetes_validate.validate(statefulset, "1.28", strict=True)


def test_what_was_not_run_is_said() -> None:
    """The README names each operator's kind as one that no schema of the tests knows."""
    paths = sorted((KUBERNETES / "examples").glob("*.yaml"))
    examples = [one for path in paths for one in _example(path.name)]
    rendered = [one for overlay in _OVERLAYS for one in render(overlay)]
    kinds = {one["kind"] for one in (*examples, *rendered) if _foreign(one)}
    said = _README.read_text().split("## What is tested")[1].split("\n## ")[0]

    assert "no cluster" in said
    assert kinds == set(re.findall(r"`([A-Z]\w+)`", said))


def test_an_example_asks_for_a_gpu() -> None:
    """The runtime of the TrainJob has one GPU a pod, and the job starts torchrun on it."""
    runtime, job = _example("trainjob.yaml")
    pod = _trainers()["trainjob"]["spec"]
    (trainer,) = pod["containers"]
    reference = job["spec"]["runtimeRef"]

    assert "1" == trainer["resources"]["limits"]["nvidia.com/gpu"]
    assert ["nvidia.com/gpu"] == [one["key"] for one in pod["tolerations"]]
    assert (runtime["kind"], runtime["metadata"]["name"]) == (reference["kind"], reference["name"])
    assert runtime["apiVersion"] == job["apiVersion"] == f"{reference['apiGroup']}/v1alpha1"
    # Kubeflow Trainer finds the trainer by these names.
    assert "node" == trainer["name"]
    assert "torchrun" == job["spec"]["trainer"]["command"][0]


def test_both_kinds_of_jobs_read_from_the_same_place() -> None:
    """The PyTorchJob and the TrainJob differ in the operator, not in what headrace needs."""
    targets = {
        one["value"]
        for pod in (_trainers()[name] for name in ("pytorchjob", "trainjob"))
        for one in pod["spec"]["containers"][0]["env"]
        if one["name"] == "HEADRACE_TARGET"
    }

    assert {"dns:///headrace:50051"} == targets


def test_the_sidecar_has_an_account_and_is_watched() -> None:
    """An account of its own without a token, and a probe of its life that is no quicker to kill."""
    job = _of_kind("overlays/sidecar", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]
    account = _of_kind("overlays/sidecar", "ServiceAccount")
    sidecar = _server_of("overlays/sidecar")
    probe = sidecar["livenessProbe"]

    assert account["metadata"]["name"] == job["template"]["spec"]["serviceAccountName"]
    assert account["automountServiceAccountToken"] is False
    command = ["headrace", "health", "unix:/run/headrace/health.sock"]
    assert command == sidecar["startupProbe"]["exec"]["command"]
    assert [*command, "--service", LIVE] == probe["exec"]["command"]
    # At least as patient as the probe of base, 60 s.
    assert 60 <= probe["periodSeconds"] * probe["failureThreshold"]


def test_the_sidecar_listens_on_no_network_whatever_its_image_says(tmp_path: Path) -> None:
    """The image's variables, which win over the file, are set to sockets as well."""
    dockerfile = (KUBERNETES.parent / "Dockerfile").read_text()
    (variables,) = re.findall(r"^ENV (HEADRACE_.*)$", dockerfile, re.MULTILINE)
    image = dict(one.split("=", 1) for one in variables.split())
    own = {one["name"]: one["value"] for one in _server_of("overlays/sidecar")["env"]}
    path = tmp_path / "headrace.yaml"
    path.write_text(_of_kind("overlays/sidecar", "ConfigMap")["data"]["headrace.yaml"])

    config = ConfigSource(path, {**image, **own}).load()

    assert ("unix:/run/headrace/server.sock",) == config.addresses
    assert "unix:/run/headrace/health.sock" == config.health_listen


@pytest.mark.parametrize("overlay", _SERVICES)
def test_probes_have_a_port_of_their_own_that_clients_cannot_reach(overlay: str) -> None:
    """Life is asked as life, so that a server that starts or drains is not restarted."""
    server = _server_of(overlay)
    ports = {one["name"]: one["containerPort"] for one in server["ports"]}
    policy = next(
        one
        for one in render(overlay)
        if one["kind"] == "NetworkPolicy" and one["spec"]["policyTypes"] == ["Ingress"]
    )
    allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    service = _of_kind(overlay, "Service")

    assert {"port": ports["health"]} == server["startupProbe"]["grpc"]
    assert {"port": ports["health"]} == server["readinessProbe"]["grpc"]
    assert {"port": ports["health"], "service": LIVE} == server["livenessProbe"]["grpc"]
    assert ports["health"] not in allowed
    assert ports["health"] not in {one["port"] for one in service["spec"]["ports"]}


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
    """What the autoscaler asks for is recorded by the overlay's rules, which are all of ours."""
    rules = yaml.safe_load((KUBERNETES.parent / "prometheus" / "rules.yml").read_text())
    applied = _of_kind("overlays/autoscaled", "PrometheusRule")["spec"]
    metrics = _of_kind("overlays/autoscaled", "HorizontalPodAutoscaler")["spec"]["metrics"]
    names = [one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods"]
    recorded = [rule.get("record") for group in applied["groups"] for rule in group["rules"]]

    assert ["headrace_starving_share"] == names
    assert "headrace:starving:share" in recorded
    assert rules == applied
