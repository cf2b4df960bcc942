"""What Helm makes of the chart in deploy/helm/headrace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from helm_python.chart import Chart

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "headrace"
DATASETS = {"flights": "s3://bucket/flights"}

Manifest = dict[str, Any]


def values(text: str = "") -> Manifest:
    """Return values from lines of ``a.b.c=yaml``, with one dataset, as ``--set`` would."""
    found: Manifest = {"datasets": {**DATASETS}}
    for line in text.split():
        path, value = line.split("=", 1)
        *parents, name = path.split(".")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = yaml.safe_load(value)
    return found


def rendered(
    text: str = "", *, name: str = "headrace", namespace: str = "default"
) -> tuple[Manifest, ...]:
    """Return the manifests of a release with `values` from text."""
    with Chart.load(CHART) as chart:
        files = chart.render(values(text), name=name, namespace=namespace)
    texts = [content for file, content in files.items() if not file.endswith("NOTES.txt")]
    return tuple(one for content in texts for one in yaml.safe_load_all(content) if one)


def notes(text: str = "") -> str:
    """Return what Helm prints after an install."""
    with Chart.load(CHART) as chart:
        files = chart.render(values(text), name="headrace", namespace="default")
    return next(content for file, content in files.items() if file.endswith("NOTES.txt"))


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> Manifest:
    """Return the only manifest of a kind."""
    (found,) = [one for one in manifests if one["kind"] == kind]
    return found


def example(name: str) -> Manifest:
    """Return the manifest of a file of deploy/kubernetes."""
    found: Manifest = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())
    return found


def scalars(value: object) -> Iterator[str]:
    """Yield every text of a manifest, keys left out."""
    if isinstance(value, dict):
        for one in value.values():
            yield from scalars(one)
    elif isinstance(value, list):
        for one in value:
            yield from scalars(one)
    elif isinstance(value, str):
        yield value
