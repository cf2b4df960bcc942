"""The chart of deploy/helm and the jobs of deploy/kubernetes, by schemas and by the server."""

from __future__ import annotations

import itertools
import random
import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from helm_python.chart import lint
from helm_python.errors import HelmError
from kubeflow_trainer_api import models

from headrace.server import ConfigSource
from headrace.server.front.health import LIVE
from headrace.server.process.start_warnings import start_warnings
from headrace.server.transports.ring import RingSettings
from support.helm import CHART, DEPLOY, Manifest, example, notes, of_kind, rendered, scalars, values

_LOWEST, _NEWEST = "1.29", "1.37"
_KUBERNETES = frozenset({"", "apps", "autoscaling", "networking.k8s.io", "policy"})
"""Groups of the API that need no operator."""
_PAGE = (DEPLOY.parent / "docs" / "kubernetes.md").read_text()
_TLS = "tls.enabled=true tls.certManager.enabled=true tokens.secretName=headrace-tokens"
_SIDECAR = "servers.enabled=false sidecar.enabled=true trainingRuntime.enabled=true"
_CHOICES = [
    *(
        (f"{name}=true", f"{name}=false")
        for name in (
            "servers.enabled",
            "lane.enabled",
            "page.enabled",
            "tls.certManager.enabled",
            "serviceAccount.create",
            "networkPolicy.enabled",
            "podDisruptionBudget.enabled",
            "monitoring.serviceMonitor.enabled",
            "monitoring.rules.enabled",
            "monitoring.dashboard.enabled",
            "sidecar.enabled",
            "trainingRuntime.enabled",
        )
    ),
    ("tls.enabled=true", "tls.enabled=false", "tls.enabled=true tls.clientCa.secretName=ca"),
    ("tokens.secretName=t", "tokens.secretName=''"),
    tuple(f"cache.disk.type={one}" for one in ("volumeClaim", "ephemeral", "none")),
    ("cache.disk.storageClassName=fast", "cache.disk.storageClassName=''"),
    ("autoscaling.type=none", "autoscaling.type=hpa autoscaling.demandMetric=true",
     "autoscaling.type=hpa", "autoscaling.type=keda"),
    tuple(f"networkPolicy.egress.credentials={one}"
          for one in ("none", "eksPodIdentity", "gke", "azure")),
    ("networkPolicy.egress.enabled=true", "networkPolicy.egress.enabled=false"),
    ('networkPolicy.pageFrom=[{"podSelector":{}}]', ""),
    (f"image.digest=sha256:{'0' * 64}", "image.tag=v1"),
    ("monitoring.otlpEndpoint=http://collector.monitoring:4317", ""),
    ("servers.topologySpread=[]", 'servers.tolerations=[{"operator":"Exists"}]'),
    ("labels.team=a podLabels.x=y podAnnotations.note=n", "servers.nodeSelector.disk=nvme"),
    ("trainingRuntime.gpus=0", "trainingRuntime.image=trainer"),
    ("serviceAccount.annotations.role=r", "image.pullSecrets=[a]"),
    ("servers.settings.drain_s=60", "servers.extraMemory=2Gi"),
]  # fmt: skip


def _pairwise() -> list[str]:
    """Values of few releases, in which any two choices of `_CHOICES` meet."""
    draw = random.Random(0)
    left = {
        (a, b) for one, other in itertools.combinations(_CHOICES, 2) for a in one for b in other
    }
    found = []
    while left:
        rows = [[draw.choice(one) for one in _CHOICES] for _ in range(40)]
        first = next(iter(sorted(left)))
        for row in rows:
            for pick in first:
                at = next(at for at, one in enumerate(_CHOICES) if pick in one)
                row[at] = pick
        best = max(rows, key=lambda row: len(left & set(itertools.combinations(row, 2))))
        left -= set(itertools.combinations(best, 2))
        found.append(" ".join(best))
    return found


def _is_foreign(manifest: Manifest) -> bool:
    """Whether an operator brings the kind, whose schema is then not Kubernetes' own."""
    return manifest["apiVersion"].rpartition("/")[0] not in _KUBERNETES


def _settings_of(manifests: tuple[Manifest, ...], folder: Path, name: str = "headrace") -> Path:
    (found,) = [
        one for one in manifests if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", name)
    ]
    path = folder / "headrace.yaml"
    path.write_text(found["data"]["headrace.yaml"])
    return path


def _server_of(manifests: tuple[Manifest, ...]) -> Manifest:
    (found,) = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def _runtime_pod(text: str) -> Manifest:
    """The pod of the runtime for Kubeflow Trainer."""
    kind = "TrainingRuntime" if "sidecar.enabled=true" in text else "ClusterTrainingRuntime"
    (job,) = of_kind(rendered(text), kind)["spec"]["template"]["spec"]["replicatedJobs"]
    pod: Manifest = job["template"]["spec"]["template"]
    return pod


def _pods() -> dict[str, Manifest]:
    """Every pod of the chart and of the examples, by where it stands."""
    jobs = {name: example(f"{name}.yaml") for name in ("pytorchjob", "tlstrainer")}
    return {
        "servers": of_kind(rendered(), "StatefulSet")["spec"]["template"],
        "sidecar": _runtime_pod(_SIDECAR),
        "runtime": _runtime_pod("trainingRuntime.enabled=true"),
        **{
            name: job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
            for name, job in jobs.items()
        },
    }


def _policies(text: str = "") -> dict[str, Manifest]:
    """The specs of the network policies, by name."""
    found = [one for one in rendered(text) if one["kind"] == "NetworkPolicy"]
    return {one["metadata"]["name"]: one["spec"] for one in found}


@pytest.mark.parametrize("version", [_LOWEST, _NEWEST])
def test_helm_finds_nothing_to_object_to(version: str) -> None:
    """Lint, strict, for the lowest release of Kubernetes and the newest, has no warning."""
    found = lint(CHART, values(_TLS), strict=True, kube_version=version)

    # INFO: it has no icon.
    assert [one for one in found["messages"] if one["severity"] not in {"INFO", 1}] == []


def test_any_two_values_go_together() -> None:
    """Fields are known to the lowest release and the newest, and mounts have their volumes."""
    for text in _pairwise():
        manifests = rendered(text, name="data", namespace="a")
        names = [(one["kind"], one["metadata"]["name"]) for one in manifests]
        assert len(set(names)) == len(names), text
        for one in manifests:
            labels = one["metadata"]["labels"]
            assert labels["app.kubernetes.io/instance"] == "data", one["kind"]
            is_cluster_wide = one["kind"] == "ClusterTrainingRuntime"
            assert one["metadata"].get("namespace") == (None if is_cluster_wide else "a")
            if not _is_foreign(one):
                kubernetes_validate.validate(one, _LOWEST, strict=True)
                kubernetes_validate.validate(one, _NEWEST, strict=True)
            if one["kind"] == "StatefulSet":
                pod = one["spec"]["template"]["spec"]
                claims = [each["metadata"] for each in one["spec"].get("volumeClaimTemplates", [])]
                volumes = {each["name"] for each in [*pod["volumes"], *claims]}
                (server,) = pod["containers"]
                assert volumes == {each["name"] for each in server["volumeMounts"]}, text
            if one["kind"].endswith("TrainingRuntime"):
                model = getattr(models, f"TrainerV1alpha1{one['kind']}")
                # What the type does not know is gone afterwards.
                assert model.from_dict(one).to_dict() == one


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("datasets.flights=3", "/datasets/flights"),
        ("replicas=2", "replicas"),
        ("cache.memory=8GB", "/cache/memory"),
        ("cache.disk.type=disk", "/cache/disk/type"),
        ("image.digest=latest", "/image/digest"),
        ("servers.settings.listen=0.0.0.0:1", "'listen'"),
        ("servers.settings.max_batch_bytes=1073741824", "/servers/settings/max_batch_bytes"),
        ("networkPolicy.clientLabel=null", "clientLabel"),
        ("autoscaling.type=vpa", "/autoscaling/type"),
        ("ports.grpc=443", "/ports/grpc"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(text: str, named: str) -> None:
    """The schema names the value; an unknown name is no value that is silently left out."""
    with pytest.raises(HelmError, match=re.escape(named)):
        rendered(text)


@pytest.mark.parametrize("name", _pods())
def test_pods_pass_the_restricted_standard(name: str) -> None:
    """Each pod is one that Kubernetes knows, and each container is as the standard asks."""
    pod = _pods()[name]
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


@pytest.mark.parametrize(
    "text",
    ["", _TLS, "lane.enabled=true page.enabled=true page.hosts=[a.example.org]",
     "cache.disk.type=none servers.settings.workers=4",
     "monitoring.otlpEndpoint=http://collector.monitoring:4317"],
)  # fmt: skip
def test_the_settings_are_the_servers(text: str, tmp_path: Path) -> None:
    """The server takes the file of the ConfigMap, and addresses and folders fit the pod."""
    manifests = rendered(text)
    config = ConfigSource(_settings_of(manifests, tmp_path)).load()
    pod = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]
    server = _server_of(manifests)
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    warnings = " ".join(start_warnings(config))
    mounts = [mount["mountPath"] for mount in server["volumeMounts"]]

    assert ["flights"] == list(config.datasets)
    is_open = "may read every dataset: there are neither tokens nor" in warnings
    assert is_open == ("tokens" not in text)
    assert is_open == ("tokens.secretName" in notes(text))
    assert (f"0.0.0.0:{ports['grpc']}",) == config.addresses
    assert f"0.0.0.0:{ports['health']}" == config.health_listen
    assert f"0.0.0.0:{ports['metrics']}" == config.metrics_listen
    assert pod["terminationGracePeriodSeconds"] > config.drain_s + 5
    assert bool(config.cache_dir) == ("/cache" in mounts)
    for path in filter(None, (config.tls_cert, config.tls_key, config.tokens)):
        assert str(Path(path).parent) in mounts


@pytest.mark.parametrize("text", ["", "cache.memory=30Gi servers.streams=1000", _SIDECAR])
def test_memory_is_that_of_the_formula(text: str, tmp_path: Path) -> None:
    """The limit is docs/limits.md's formula and some 10 % more; batches of 1 MiB never wait."""
    is_sidecar = text == _SIDECAR
    manifests = rendered(text)
    name = "headrace-sidecar" if is_sidecar else "headrace"
    config = ConfigSource(_settings_of(manifests, tmp_path, name)).load()
    (server,) = (
        _runtime_pod(text)["spec"]["initContainers"] if is_sidecar else [_server_of(manifests)]
    )
    formula = (DEPLOY.parent / "docs" / "limits.md").read_text()
    limit = int(server["resources"]["limits"]["memory"].removesuffix("Mi"))
    reads = min(config.fetch_threads * 8, 128) + config.fetch_threads
    payloads = config.payload_bytes // 2**20
    wanted = 195 + config.cache_bytes // 2**20 + reads + payloads + config.max_streams * 4
    # One for each of eight ranks of a host; over the network there are none.
    ring = config.of_plug(RingSettings).ring_bytes // 2**20
    rings = 8 * ring if is_sidecar else 0

    assert "fetch_threads \N{MULTIPLICATION SIGN} R" in formula
    assert "payload_bytes + streams \N{MULTIPLICATION SIGN} 4 MiB" in formula
    assert payloads >= config.max_streams * (4 * 1 + 2 * 3) + rings
    assert wanted * 1.1 <= limit <= wanted * 1.15
    if is_sidecar:
        # The last of eight rings is no more than a quarter of what the limit leaves (docs/ring.md).
        assert ring <= (limit - config.cache_bytes // 2**20 - 7 * ring) / 4


def test_trainers_of_other_namespaces_are_let_in_by_two_labels() -> None:
    """A pod's own label does in the server's namespace; elsewhere the namespace needs one too."""
    here, elsewhere = _policies()["headrace"]["ingress"][0]["from"]
    trainers = [pod for name, pod in _pods().items() if name not in {"servers", "sidecar"}]

    # Two entries would let in every pod of such a namespace: both labels stand in one.
    assert {"podSelector"} == set(here)
    assert {"podSelector", "namespaceSelector"} == set(elsewhere)
    assert {"headrace.io/clients": "true"} == elsewhere["namespaceSelector"]["matchLabels"]
    for peer in (here, elsewhere):
        admitted = peer["podSelector"]["matchLabels"]
        assert admitted, "an empty selector is every pod"
        for trainer in trainers:
            assert admitted.items() <= trainer["metadata"]["labels"].items()


def test_ports_that_are_open_are_let_in() -> None:
    """The lane's is the clients', the page's that of named peers, and the probes' nobody's."""
    plain = _policies()["headrace"]["ingress"]
    more = _policies(
        'lane.enabled=true page.enabled=true networkPolicy.pageFrom=[{"podSelector":{}}]'
    )["headrace"]["ingress"]

    assert [[50051], [9090]] == [[port["port"] for port in rule["ports"]] for rule in plain]
    assert [[50051, 50053], [9090], [8080]] == [
        [port["port"] for port in rule["ports"]] for rule in more
    ]


@pytest.mark.parametrize("credentials", ["none", "eksPodIdentity", "gke", "azure"])
def test_servers_connect_to_names_stores_and_traces_alone(credentials: str) -> None:
    """Every rule names peers and ports; a node's credentials are in none that is not asked for."""
    text = f"networkPolicy.egress.credentials={credentials} monitoring.otlpEndpoint=http://c.m:4318"
    policy = _policies(text)["headrace-egress"]
    ports = [{port["port"] for port in rule["ports"]} for rule in policy["egress"]]
    blocks = [
        peer["ipBlock"] for rule in policy["egress"] for peer in rule["to"] if "ipBlock" in peer
    ]
    metadata = [ip_address("169.254.169.254"), ip_address("fd00:ec2::254")]
    reached = [
        str(address)
        for address in metadata
        for block in blocks
        if address in ip_network(block["cidr"])
        and not any(address in ip_network(one) for one in block.get("except", []))
    ]

    assert ["Egress"] == policy["policyTypes"]
    assert [{53}, {443}, {4318}] == ports[:3]
    assert all(rule["to"] for rule in policy["egress"])
    assert (["169.254.169.254"] if credentials in {"gke", "azure"} else []) == reached


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_the_autoscaler_alone_says_how_many(kind: str) -> None:
    """Applying the chart again leaves the number as it is: the set has no `replicas`."""
    scaled = rendered(f"autoscaling.type={kind} autoscaling.demandMetric=true")
    scaler = of_kind(scaled, "HorizontalPodAutoscaler" if kind == "hpa" else "ScaledObject")
    autoscaled, plain = (of_kind(one, "StatefulSet")["spec"] for one in (scaled, rendered()))
    recorded = [
        rule.get("record", "").replace(":", "_")
        for group in yaml.safe_load((CHART / "files" / "rules.yml").read_text())["groups"]
        for rule in group["rules"]
    ]

    assert "replicas" not in autoscaled
    assert {**plain, "replicas": None} == {**autoscaled, "replicas": None}
    assert ("StatefulSet", "headrace") == (
        scaler["spec"]["scaleTargetRef"]["kind"],
        scaler["spec"]["scaleTargetRef"]["name"],
    )
    assert "headrace_demand_share" in recorded
    assert any("demand" in text for text in scalars(scaler))


def test_nothing_is_left_behind_by_scaling_down() -> None:
    """Claims of replicas that are gone go with them, unless it is said that they are kept."""
    plain, kept = (
        of_kind(rendered(text), "StatefulSet")["spec"]
        for text in ("", "cache.disk.whenScaled=Retain")
    )

    assert {"whenScaled": "Delete", "whenDeleted": "Delete"} == plain[
        "persistentVolumeClaimRetentionPolicy"
    ]
    assert "Retain" == kept["persistentVolumeClaimRetentionPolicy"]["whenScaled"]


def test_rules_and_dashboard_are_those_of_the_files() -> None:
    """The operator gets the rules that promtool tests, and Grafana a dashboard of any source."""
    manifests = rendered(
        "monitoring.rules.enabled=true monitoring.dashboard.enabled=true "
        "monitoring.serviceMonitor.enabled=true monitoring.serviceMonitor.labels.release=p"
    )
    rules = yaml.safe_load((CHART / "files" / "rules.yml").read_text())
    dashboards = [one for one in manifests if one["metadata"]["name"] == "headrace-dashboard"]
    shown = yaml.safe_load(dashboards[0]["data"]["headrace.json"])
    monitor = of_kind(manifests, "ServiceMonitor")

    assert rules == of_kind(manifests, "PrometheusRule")["spec"]
    assert {"${datasource}"} == {panel["datasource"]["uid"] for panel in shown["panels"]}
    assert "p" == monitor["metadata"]["labels"]["release"]
    # Rules look for this name of the scrape job, and tell two installs apart by it.
    jobs = [
        of_kind(
            rendered(f"monitoring.serviceMonitor.enabled=true fullnameOverride={name}"),
            "ServiceMonitor",
        )["spec"]["endpoints"][0]["relabelings"][0]["replacement"]
        for name in ("blue", "green")
    ]
    assert ["headrace/blue", "headrace/green"] == jobs


def test_an_image_is_named_by_digest_or_version() -> None:
    """A digest wins over a tag, and without either it is the version of the chart."""
    digest = f"sha256:{'a' * 64}"
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    project = (DEPLOY.parent / "pyproject.toml").read_text()

    assert f"headrace-server:{version}" == _server_of(rendered())["image"]
    assert (
        f"headrace-server@{digest}"
        == _server_of(rendered(f"image.digest={digest} image.tag=v2"))["image"]
    )
    assert f'\nversion = "{version}"\n' in project


def test_what_was_not_run_is_said() -> None:
    """The README names each operator's kind, and which of them no schema of the tests knows."""
    examples = [example(path.name) for path in (DEPLOY / "kubernetes").glob("*.yaml")]
    manifests = [one for text in (*_pairwise(), _SIDECAR) for one in rendered(text)]
    kinds = {one["kind"] for one in (*examples, *manifests) if _is_foreign(one)}
    said = _PAGE.split("## What is tested")[1].split("\n## ")[0]

    assert "no cluster" in said
    assert kinds == set(re.findall(r"`([A-Z]\w+)`", said))


def test_the_job_names_the_runtime_of_the_chart() -> None:
    """The TrainJob is one of the operator's, its runtime has a GPU a pod, and both read alike."""
    job = example("trainjob.yaml")
    runtime = of_kind(rendered("trainingRuntime.enabled=true"), "ClusterTrainingRuntime")
    pod = _pods()["runtime"]["spec"]
    (trainer,) = pod["containers"]
    old = _pods()["pytorchjob"]["spec"]["containers"][0]
    targets = [{one["name"]: one["value"] for one in each["env"]} for each in (trainer, old)]

    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
    assert (runtime["kind"], runtime["metadata"]["name"]) == (
        job["spec"]["runtimeRef"]["kind"],
        job["spec"]["runtimeRef"]["name"],
    )
    assert "1" == trainer["resources"]["limits"]["nvidia.com/gpu"]
    assert ["nvidia.com/gpu"] == [one["key"] for one in pod["tolerations"]]
    # Kubeflow Trainer finds the trainer by this name.
    assert "node" == trainer["name"]
    assert "torchrun" == job["spec"]["trainer"]["command"][0]
    assert "dns:///headrace.default.svc:50051" == targets[0]["HEADRACE_TARGET"]
    assert "dns:///headrace:50051" == targets[1]["HEADRACE_TARGET"]


def test_probes_have_a_port_of_their_own() -> None:
    """Life is asked as life, so that a server that starts or drains is not restarted."""
    server = _server_of(rendered())
    ports = {one["name"]: one["containerPort"] for one in server["ports"]}

    assert {"port": ports["health"]} == server["startupProbe"]["grpc"]
    assert {"port": ports["health"]} == server["readinessProbe"]["grpc"]
    assert {"port": ports["health"], "service": LIVE} == server["livenessProbe"]["grpc"]
    service = of_kind(rendered(), "Service")["spec"]
    assert "None" == service["clusterIP"]
    assert ports["health"] not in {one["port"] for one in service["ports"]}


def test_the_sidecar_is_native_and_listens_on_no_network(tmp_path: Path) -> None:
    """A restarted init container, a socket in a shared volume, and no port, whatever its image."""
    pod = _runtime_pod(_SIDECAR)["spec"]
    (sidecar,), (trainer,) = pod["initContainers"], pod["containers"]
    shared = [
        {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
        for one in (sidecar, trainer)
    ]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    (variables,) = re.findall(r"^ENV (HEADRACE_.*)$", dockerfile, re.MULTILINE)
    image = dict(one.split("=", 1) for one in variables.split())
    own = {one["name"]: one["value"] for one in sidecar["env"]}
    path = _settings_of(rendered(_SIDECAR), tmp_path, "headrace-sidecar")
    config = ConfigSource(path, {**image, **own}).load()
    account = of_kind(rendered(_SIDECAR), "ServiceAccount")
    command = ["headrace", "health", "unix:/run/headrace/health.sock"]

    assert ("unix:/run/headrace/server.sock",) == config.addresses
    assert "unix:/run/headrace/health.sock" == config.health_listen
    assert 0o660 == config.unix_mode
    assert "Always" == sidecar["restartPolicy"]
    assert "ports" not in sidecar
    assert "/run/headrace" == shared[0]["headrace-socket"] == shared[1]["headrace-socket"]
    assert {"name": "HEADRACE_TARGET", "value": "unix:/run/headrace/server.sock"} in trainer["env"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    assert account["metadata"]["name"] == pod["serviceAccountName"]
    assert command == sidecar["startupProbe"]["exec"]["command"]
    assert [*command, "--service", LIVE] == sidecar["livenessProbe"]["exec"]["command"]
    (printed,) = re.findall(r"`initContainers`,\n\n(.*?)\n\nwith", notes(_SIDECAR), re.DOTALL)
    assert sidecar == yaml.safe_load(printed)
