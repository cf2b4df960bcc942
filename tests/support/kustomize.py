"""What `kubectl kustomize` makes of a folder below deploy/kubernetes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
_KUBECTL = Path(sys.executable).parent / "kubectl"

Manifest = dict[str, Any]


@cache
def render(overlay: str) -> tuple[Manifest, ...]:
    """Return the manifests of a folder, named from deploy/kubernetes."""
    return build(KUBERNETES / overlay)


def build(folder: Path) -> tuple[Manifest, ...]:
    """Return the manifests of a kustomization anywhere."""
    done = subprocess.run(
        [_KUBECTL, "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def install(folder: Path, overlay: str, **settings: str) -> tuple[Manifest, ...]:
    """Return the manifests of a user's own kustomization of an overlay, written into ``folder``."""
    folder.mkdir()
    # kustomize takes no absolute paths.
    resource = os.path.relpath((KUBERNETES / overlay).resolve(), folder.resolve())
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [resource], **settings})
    )
    return build(folder)


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> Manifest:
    """Return the only manifest of a kind."""
    (found,) = [one for one in manifests if one["kind"] == kind]
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
