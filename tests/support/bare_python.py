"""An interpreter that has all packages of this one but headrace, as a cluster's executors may."""

from __future__ import annotations

import sys
import venv
from pathlib import Path


def make_bare_python(folder: Path) -> Path:
    """Return an interpreter in ``folder`` that has links to this one's packages.

    An editable installation is a ``.pth`` file, which Python does not look for behind a link.
    """
    home, links = folder / "bare", folder / "links"
    links.mkdir(parents=True)
    for path in map(Path, sys.path):
        if path.name in {"site-packages", "dist-packages"}:
            for item in path.iterdir():
                link = links / item.name
                if "headrace" not in item.name.lower() and not link.exists():
                    link.symlink_to(item)
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "links.pth").write_text(f"{links}\n")
    return home / "bin" / "python"
