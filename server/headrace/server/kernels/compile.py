"""Compile the loops that lie in ``src``: when headrace is installed, or by hand.

    python -m headrace.server.kernels

Only the standard library is imported, because building a wheel runs this file by itself. The result
is for CPython 3.11 and newer on this processor architecture. Extensions such as AVX2 are detected
when the loops are loaded, so they run on any other machine of the architecture too. No headers of
Python are needed. Where there is no C compiler, that of the package ``ziglang`` is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path

EXTENSION = "_loops.abi3.so"
"""The file name of the module, for any version of CPython that compiled it."""

_HERE = Path(__file__).parent
_SOURCES = _HERE / "src"
_COMPILE_S = 120.0
_FLAGS = (
    "-std=c11",
    "-O3",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
)
# Otherwise it compiles for this very processor, checks for undefined behaviour and keeps symbols.
_ZIG_FLAGS = ("-mcpu=baseline", "-fno-sanitize=undefined", "-s")


class NotCompiledError(Exception):
    """There is no compiler, or it failed; the message says why."""


def sources_digest() -> str:
    """Return the digest that identifies the sources."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_loops(folder: Path = _HERE) -> Path:
    """Compile the loops into a folder; return the module's path.

    Raises:
        NotCompiledError: It is not possible here.
    """
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotCompiledError("the loops need CPython with its global lock")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".compile-") as scratch:
        made = Path(scratch, EXTENSION)
        command = [
            *_compiler(),
            *_FLAGS,
            "-bundle" if sys.platform == "darwin" else "-shared",
            *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()),
            f'-DSOURCES="{sources_digest()}"',
            str(_SOURCES / "loops.c"),
            *("-o", str(made)),
            *shlex.split(os.environ.get("CFLAGS", "")),
        ]
        _run(command)
        # Atomically: another process may load it, or compile it too.
        return made.replace(folder / EXTENSION)


def compile_if_stale() -> None:
    """Compile the loops of a clone if its sources have changed and a compiler is available."""
    made = _HERE / EXTENSION
    try:
        if not made.is_file() or sources_digest().encode() not in made.read_bytes():
            compile_loops()
    except (NotCompiledError, OSError) as error:
        warnings.warn(f"the loops are not compiled: {error}", stacklevel=2)


def find_compiler() -> list[str] | None:
    """Return the command of a C compiler: that of ``CC``, or the first one found, or Zig's."""
    named = os.environ.get("CC")
    for candidate in [named] if named else [sysconfig.get_config_var("CC"), "cc", "gcc", "clang"]:
        command = shlex.split(candidate or "")
        if command and shutil.which(command[0]):
            return command
    if named or importlib.util.find_spec("ziglang") is None:
        return None
    return [sys.executable, "-m", "ziglang", "cc", *_ZIG_FLAGS]


def needs_zig() -> bool:
    """Return whether only the package ``ziglang``, which is missing, could compile the loops."""
    return find_compiler() is None and not os.environ.get("CC")


def _compiler() -> list[str]:
    command = find_compiler()
    if command is not None:
        return command
    named = os.environ.get("CC")
    wanted = f"CC={named} is no program" if named else "none of cc, gcc and clang is a program"
    raise NotCompiledError(
        f"{wanted} on this machine; install a C compiler (Debian, Ubuntu: apt-get install gcc "
        "libc6-dev; or pip install ziglang)"
    )


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that this machine names
            command, capture_output=True, text=True, timeout=_COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiledError(f"{command[0]} did not run: {error}") from error
    if done.returncode:
        raise NotCompiledError(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
