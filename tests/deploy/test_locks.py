"""deploy/locks: what each extra brings, to the byte, and the bills of materials made of it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

_ROOT = Path(__file__).parents[2]
_LOCKS = _ROOT / "deploy" / "locks"
_SETTINGS = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_PROJECT = _SETTINGS["project"]
_EXTRAS: dict[str, list[str]] = _PROJECT["optional-dependencies"]
_TOOLS = {
    "build": _SETTINGS["build-system"]["requires"],
    "sbom": re.findall(r"^SBOM_TOOL := (.*)$", (_ROOT / "Makefile").read_text(), re.MULTILINE),
}
_NAMES = (*_TOOLS, "client", *_EXTRAS)
"""One lock for each extra, one for the client, which needs none, and two for tools of the build."""


class _Locked(NamedTuple):
    version: str
    hashes: frozenset[str]


@cache
def _locked(name: str) -> dict[str, _Locked]:
    """The packages of a lock, whatever platform they are for."""
    text = (_LOCKS / f"{name}.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        package = re.fullmatch(
            r"([a-z\d-]+)==(\S+)((?: ; [^#]*?)?)((?: +--hash=sha256:[\da-f]{64})+)", line
        )
        assert package is not None, f"{name}.txt: {line[:80]}"
        assert package[1] not in found, f"{name}.txt has {package[1]} twice"
        found[package[1]] = _Locked(package[2], frozenset(package[4].split()))
    return found


def _asked_for(name: str) -> list[Requirement]:
    """What pyproject.toml asks for, with what the extras that an extra names ask for."""
    if name in _TOOLS:
        return [Requirement(one) for one in _TOOLS[name]]
    own = [Requirement(one) for one in _EXTRAS.get(name, [])]
    named = [extra for one in own if one.name == "headrace" for extra in one.extras]
    base = [Requirement(one) for one in _PROJECT["dependencies"]]
    others = [one for extra in named for one in _asked_for(extra)]
    return [*base, *others, *(one for one in own if one.name != "headrace")]


def test_each_extra_has_a_lock() -> None:
    """One file for each extra, and none for an extra that is no more."""
    assert {f"{name}.txt" for name in _NAMES} == {path.name for path in _LOCKS.iterdir()}


@pytest.mark.parametrize("name", _NAMES)
def test_a_lock_has_what_the_extra_asks_for(name: str) -> None:
    """Every package that pyproject.toml names is in it, in a version that it allows."""
    locked = _locked(name)

    for wanted in _asked_for(name):
        found = locked.get(canonicalize_name(wanted.name))
        assert found is not None, f"{name}.txt lacks {wanted}: run `make lock`"
        assert Version(found.version) in wanted.specifier, f"{name}.txt: {wanted}: run `make lock`"


@pytest.mark.parametrize("name", _NAMES)
def test_a_lock_has_the_versions_that_were_tested(name: str) -> None:
    """What constraints.txt pins is locked in that version."""
    pins = [line for line in (_ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    tested: dict[str, str] = {
        canonicalize_name(pin.split("==")[0]): pin.split("==")[1] for pin in pins
    }
    locked = {package: one.version for package, one in _locked(name).items()}

    assert locked == {package: tested.get(package, locked[package]) for package in locked}


def test_locks_can_be_installed_together() -> None:
    """A package has one version and one set of hashes, in whichever lock it stands."""
    seen: dict[str, _Locked] = {}
    for name in _NAMES:
        for package, one in _locked(name).items():
            assert seen.setdefault(package, one) == one, f"{package} differs: run `make lock`"

    assert {"grpcio", "torch", "pyspark"} <= set(seen)


@pytest.mark.parametrize("name", _NAMES)
def test_a_lock_names_no_place(name: str) -> None:
    """Packages are told by their hashes, so it does not matter from which index they come."""
    text = (_LOCKS / f"{name}.txt").read_text()

    assert not re.search(
        r"://|^-|--(index|extra-index|find-links|trusted)|@ |file:", text, re.MULTILINE
    )


@pytest.mark.long
def test_each_lock_has_a_bill_of_materials() -> None:
    """`make sbom` writes CycloneDX with every package of the lock, by version and hash."""
    subprocess.run(["make", "sbom"], cwd=_ROOT, check=True, capture_output=True, timeout=280)

    for name in _NAMES:
        bill = json.loads((_ROOT / ".build" / "sbom" / f"{name}.cdx.json").read_text())
        parts = {
            canonicalize_name(one["name"]): _Locked(
                one["version"],
                frozenset(
                    f"--hash=sha256:{digest['content']}"
                    for reference in one["externalReferences"]
                    for digest in reference.get("hashes", [])
                ),
            )
            for one in bill["components"]
        }
        assert "CycloneDX" == bill["bomFormat"]
        assert "headrace" == bill["metadata"]["component"]["name"]
        assert _locked(name) == parts
