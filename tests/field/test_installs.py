"""Installs in Kubernetes: overlays together, two in a namespace, and trainers of another one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from headrace.server import ServerConfig, start_server
from support.datasets import write_rows
from support.kustomize import KUBERNETES, Manifest, install, of_kind, render, scalars

_BOTH = "overlays/autoscaled-tls"
_README = (KUBERNETES.parent / "README.md").read_text()


def _selectors(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    """What each manifest picks the install's own pods, or its service, by."""
    found: dict[str, Manifest] = {}
    for one in manifests:
        spec: Any = one.get("spec", {})
        match one["kind"]:
            case "Service":
                found["Service"] = spec["selector"]
            case "StatefulSet" | "PodDisruptionBudget" | "ServiceMonitor":
                found[one["kind"]] = spec["selector"]["matchLabels"]
            case "NetworkPolicy":
                found[one["metadata"]["name"]] = spec["podSelector"]["matchLabels"]
    (spread,) = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"][
        "topologySpreadConstraints"
    ]
    return {**found, "spread": spread["labelSelector"]["matchLabels"]}


def _in_readme(folder: Path) -> dict[str, Any]:
    """The kustomization that the README shows, with its resource as seen from ``folder``."""
    shown = re.search(r"```yaml\n(resources: .*?)```", _README, re.DOTALL)
    assert shown is not None
    settings: dict[str, Any] = yaml.safe_load(shown[1])
    (resource,) = settings["resources"]
    path = os.path.relpath((KUBERNETES.parents[1] / resource).resolve(), folder.resolve())
    return {**settings, "resources": [path]}


def test_autoscaling_and_tls_go_together() -> None:
    """One overlay has what either has alone: no replicas, a monitor, TLS and its probes."""
    both, tls, scaled = (
        render(f"overlays/{name}") for name in ("autoscaled-tls", "tls", "autoscaled")
    )

    assert {one["kind"] for one in (*tls, *scaled)} == {one["kind"] for one in both}
    assert of_kind(tls, "ConfigMap") == of_kind(both, "ConfigMap")
    assert of_kind(tls, "Certificate") == of_kind(both, "Certificate")
    (secured,) = of_kind(tls, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    (server,) = of_kind(both, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert secured == server
    assert "replicas" not in of_kind(both, "StatefulSet")["spec"]


@pytest.mark.parametrize("change", ["namePrefix", "nameSuffix"])
def test_two_installs_in_a_namespace_have_their_own_pods(tmp_path: Path, change: str) -> None:
    """No selector of one matches a pod or a service of the other, and each matches its own."""
    blue = install(tmp_path / "blue", _BOTH, namespace="a", **{change: "blue"})
    green = install(tmp_path / "green", _BOTH, namespace="a", **{change: "green"})

    for own, other in ((blue, green), (green, blue)):
        selectors = _selectors(own)
        assert 7 == len(selectors)
        for manifests, expected in ((own, True), (other, False)):
            pods = of_kind(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
            service = of_kind(manifests, "Service")["metadata"]["labels"]
            matched = {
                name: selector.items() <= (service if name == "ServiceMonitor" else pods).items()
                for name, selector in selectors.items()
            }
            assert dict.fromkeys(matched, expected) == matched
    names = [{(one["kind"], one["metadata"]["name"]) for one in side} for side in (blue, green)]
    assert set() == names[0] & names[1]


def test_certificates_follow_the_namespace_and_the_prefix(tmp_path: Path) -> None:
    """The README's install is certified by the names of its service, in its own secret."""
    folder = tmp_path / "mine"
    settings = _in_readme(folder)
    mine = install(folder, _BOTH, **{key: settings[key] for key in ("namespace", "namePrefix")})
    certificate = of_kind(mine, "Certificate")
    service = of_kind(mine, "Service")["metadata"]
    volumes = of_kind(mine, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    secrets = [one["secret"]["secretName"] for one in volumes if one["name"] == "tls"]

    assert ("blue-headrace", "team-a") == (service["name"], service["namespace"])
    assert [
        "localhost",
        "blue-headrace",
        "blue-headrace.team-a",
        "blue-headrace.team-a.svc",
        "blue-headrace.team-a.svc.cluster.local",
    ] == certificate["spec"]["dnsNames"]
    assert ["blue-headrace-tls"] == secrets == [certificate["spec"]["secretName"]]
    assert {"team-a"} == {one["metadata"]["namespace"] for one in mine}


def test_a_prefix_reaches_what_a_job_names(tmp_path: Path) -> None:
    """The sidecar's job reads the settings and uses the account that were made with it."""
    mine = install(tmp_path / "mine", "overlays/sidecar", namePrefix="blue-")
    job = set(scalars(of_kind(mine, "PyTorchJob")))

    assert {"blue-headrace-sidecar"} == {
        of_kind(mine, kind)["metadata"]["name"] for kind in ("ConfigMap", "ServiceAccount")
    }
    assert "blue-headrace-sidecar" in job


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [("base", "kubernetes.io/h2c"), ("overlays/tls", "https"), (_BOTH, "https")],
)
def test_a_port_with_tls_is_not_called_clear_text(overlay: str, expected: str) -> None:
    """What a service says of its port's protocol is what the server speaks there."""
    ports = of_kind(render(overlay), "Service")["spec"]["ports"]

    assert expected == next(one["appProtocol"] for one in ports if one["name"] == "grpc")


def _tls_trainer() -> Manifest:
    """The example of a trainer for the overlay with TLS."""
    found: Manifest = yaml.safe_load((KUBERNETES / "examples" / "tlstrainer.yaml").read_text())
    return found


def test_the_trainer_of_another_namespace_knows_a_certified_name() -> None:
    """Its target is in the certificate, and it may connect from where it is."""
    job = _tls_trainer()
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    (container,) = pod["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    certificate = of_kind(render("overlays/tls"), "Certificate")
    host, port = environment["HEADRACE_TARGET"].removeprefix("dns:///").rsplit(":", 1)
    (volume,) = pod["spec"]["volumes"]
    (mount,) = container["volumeMounts"]

    assert certificate["metadata"]["namespace"] != job["metadata"]["namespace"]
    assert host in certificate["spec"]["dnsNames"]
    assert "50051" == port
    assert "true" == pod["metadata"]["labels"]["headrace.io/client"]
    assert (volume["name"], environment["HEADRACE_SECRET"]) == (mount["name"], mount["mountPath"])


def test_the_trainer_with_ca_and_token_reads(tmp_path: Path) -> None:
    """The example's program, as printed, reads whole batches over TLS with its two files."""
    url = str(tmp_path / "flights")
    write_rows(url, sample_count=1000, width=4)
    authority = trustme.CA()
    names = of_kind(render("overlays/tls"), "Certificate")["spec"]["dnsNames"]
    certificate = authority.issue_cert(*names)
    for name, content in (
        ("ca.crt", authority.cert_pem),
        ("tls.crt", certificate.cert_chain_pems[0]),
        ("tls.key", certificate.private_key_pem),
    ):
        content.write_to_path(str(tmp_path / name))
    (tmp_path / "token").write_text("a-token-of-team-a-0123\n")
    tokens = [{"name": "team-a", "token": "a-token-of-team-a-0123", "datasets": ["flights"]}]
    (tmp_path / "tokens.json").write_text(json.dumps({"tokens": tokens}))
    for secret in ("tls.key", "tokens.json"):
        (tmp_path / secret).chmod(0o600)
    config = ServerConfig(
        datasets={"flights": url},
        listen="localhost:0",
        tls_cert=str(tmp_path / "tls.crt"),
        tls_key=str(tmp_path / "tls.key"),
        tokens=str(tmp_path / "tokens.json"),
    )
    (container,) = _tls_trainer()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"][
        "containers"
    ]

    with start_server(config) as server:
        done = subprocess.run(
            [sys.executable, *container["command"][1:], *container["args"]],
            env={
                **os.environ,
                "HEADRACE_TARGET": f"localhost:{server.address.rpartition(':')[2]}",
                "HEADRACE_SECRET": str(tmp_path),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert 0 == done.returncode, done.stderr
    assert 768 == sum(map(int, done.stdout.split()))


def test_a_conversion_needs_no_keys() -> None:
    """No Secret is asked for, and driver and executors have the account of a role."""
    spec = yaml.safe_load((KUBERNETES / "examples" / "sparkapplication.yaml").read_text())["spec"]

    for side in ("driver", "executor"):
        assert "spark" == spec[side]["serviceAccount"]
        assert all(one["secretRef"]["optional"] for one in spec[side]["envFrom"])
