"""Installs in Kubernetes: two in a namespace, and trainers of another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme

from support.datasets import write_rows
from support.helm import Manifest, example, of_kind, rendered
from support.running import server_of

_BOTH = (
    "tls.enabled=true tls.certManager.enabled=true tokens.secretName=headrace-tokens "
    "autoscaling.type=hpa monitoring.serviceMonitor.enabled=true"
)


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
                found[one["metadata"]["name"].partition("-")[2]] = spec["podSelector"][
                    "matchLabels"
                ]
    (spread,) = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"][
        "topologySpreadConstraints"
    ]
    return {**found, "spread": spread["labelSelector"]["matchLabels"]}


def test_two_installs_in_a_namespace_have_their_own_pods() -> None:
    """No selector of one matches a pod or a service of the other, and each matches its own."""
    blue, green = (rendered(_BOTH, name=name, namespace="a") for name in ("blue", "green"))

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


def test_certificates_follow_the_namespace_and_the_name() -> None:
    """A release is certified by the names of its service, in its own secret."""
    mine = rendered(_BOTH, name="blue", namespace="team-a")
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


@pytest.mark.parametrize(("text", "expected"), [("", "kubernetes.io/h2c"), (_BOTH, "https")])
def test_a_port_with_tls_is_not_called_clear_text(text: str, expected: str) -> None:
    """What a service says of its port's protocol is what the server speaks there."""
    ports = of_kind(rendered(text), "Service")["spec"]["ports"]

    assert expected == next(one["appProtocol"] for one in ports if one["name"] == "grpc")


def test_the_trainer_of_another_namespace_knows_a_certified_name() -> None:
    """Its target is in the certificate, and it may connect from where it is."""
    job = example("tlstrainer.yaml")
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    (container,) = pod["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    certificate = of_kind(rendered(_BOTH), "Certificate")
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
    names = of_kind(rendered(_BOTH), "Certificate")["spec"]["dnsNames"]
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
    (container,) = example("tlstrainer.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"][
        "spec"
    ]["containers"]

    with server_of(
        {"flights": url},
        listen="localhost:0",
        tls_cert=str(tmp_path / "tls.crt"),
        tls_key=str(tmp_path / "tls.key"),
        tokens=str(tmp_path / "tokens.json"),
    ) as server:
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
    spec = example("sparkapplication.yaml")["spec"]

    for side in ("driver", "executor"):
        assert "spark" == spec[side]["serviceAccount"]
        assert all(one["secretRef"]["optional"] for one in spec[side]["envFrom"])
