"""A real container engine, if there is one: docker-compose.yml as a project of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_IMAGES = {
    "store": "demo-store",
    "converter": "demo-converter",
    "headrace": "server",
    "trainer": "demo-trainer",
}
_PULLED = {"prometheus": "prom/prometheus:v3.5.0", "grafana": "grafana/grafana:12.0.2"}
_BUILD_S = 1200.0


@dataclass(frozen=True, slots=True)
class Project:
    """A running project.

    Attributes:
        name: Compose's name of it.
        services: Those whose images could be had.
        compose_program: The words that Compose is called with.
    """

    name: str
    services: tuple[str, ...]
    compose_program: tuple[str, ...]

    def compose(self, *arguments: str, timeout_s: float = 300) -> str:
        """Run a command of Compose, and return what it prints."""
        return _run([*self.compose_program, "-p", self.name, *arguments], timeout_s)

    def containers(self, service: str) -> list[str]:
        """Return the ids of a service's containers, ended ones too."""
        # Not those of `compose run`, which are the service's too.
        labels = {"project": self.name, "service": service, "oneoff": "False"}
        filters = [f"--filter=label=com.docker.compose.{key}={labels[key]}" for key in labels]
        found = docker("ps", "--all", "--format", "{{.Names}} {{.ID}}", *filters)
        return [line.split()[1] for line in sorted(found.splitlines())]

    def address(self, service: str, port: int) -> str:
        """Return where a port of a service is published."""
        return self.compose("port", service, str(port)).strip()


def docker(*arguments: str, timeout_s: float = 300) -> str:
    """Run a command of the engine, and return what it prints."""
    return _run(["docker", *arguments], timeout_s)


@contextmanager
def project() -> Iterator[Project]:
    """Build the images and give a project that is removed at the end, volumes too."""
    compose = _compose_program()
    _build()
    missing = [name for name, image in _PULLED.items() if not _has(image)]
    services = tuple(name for name in (*_IMAGES, *_PULLED) if name not in missing)
    running = Project(f"headrace-test-{uuid.uuid4().hex[:8]}", services, compose)
    try:
        yield running
    finally:
        running.compose("--profile", "*", "down", "--volumes", "--timeout", "5")


def _compose_program() -> tuple[str, ...]:
    if shutil.which("docker") is None or _fails(["docker", "info"]):
        pytest.skip("no container engine answers (start Docker, or set DOCKER_HOST)")
    compose = Path(sys.executable).parent / "docker-compose"
    return (str(compose), "--project-directory", str(_ROOT))


def _build() -> None:
    index = os.environ.get("TORCH_INDEX")
    options = ["--", "--build-arg", f"TORCH_INDEX={index}"] if index else []
    # Compose looks for the tag that stands for none.
    _run(["deploy/build-images.sh", "--tag", "latest", *_IMAGES.values(), *options], _BUILD_S)


def _has(image: str) -> bool:
    return not _fails(["docker", "image", "inspect", image]) or not _fails(
        ["docker", "pull", "--quiet", image]
    )


def _fails(command: Sequence[str]) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    return done.returncode != 0


def _run(command: Sequence[str], timeout_s: float) -> str:
    # Ports that are free, so that a second project does not mind the first.
    free = {"HEADRACE_PORTS": "0", "PROMETHEUS_PORT": "0", "GRAFANA_PORT": "0"}
    done = subprocess.run(
        command,
        cwd=_ROOT,
        env={**os.environ, **free},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout
