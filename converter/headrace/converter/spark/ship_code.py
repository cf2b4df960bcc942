"""Bring this very code to executors that lack it, or have another version of it."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES = (
    "headrace.arguments",
    "headrace.caches",
    "headrace.converter",
    "headrace.errors",
    "headrace.storage",
)


@functools.cache
def code_digest() -> str:
    """Return what tells two versions of this code apart, wherever it was imported from."""
    digest = hashlib.blake2b(digest_size=8)
    for name, content in sorted(_sources()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def ship(session: SparkSession) -> None:
    """Give a session's Python workers this code, before any they have; classic and Connect."""
    path = str(archive())
    connected: Any = session
    try:
        context = session.sparkContext
    except Exception:  # noqa: BLE001 - Connect has none, and each version refuses in its way
        connected.addArtifacts(path, pyfile=True)
    else:
        context.addPyFile(path)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that lasts as long as this process, and is removed with it."""
    return tempfile.TemporaryDirectory(prefix="headrace-")


@functools.cache
def archive() -> Path:
    """Return an archive of this code, which lasts as long as this process."""
    # Executors fetch it from the driver when their first task comes, also those that start later.
    path = Path(_folder().name, f"headrace-{code_digest()}.zip")
    _write_zip(path)
    return path


def _write_zip(path: Path) -> None:
    folders: set[str] = set()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(_sources()):
            parts = name.split("/")[:-1]
            # Python before 3.13 sees a package without __init__.py in an archive only where its
            # folder has an entry, and `headrace` is one.
            for depth in range(1, len(parts) + 1):
                folder = "/".join(parts[:depth]) + "/"
                if folder not in folders:
                    folders.add(folder)
                    archive.writestr(folder, b"")
            archive.writestr(name, content)


def _sources() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        root = importlib.resources.files(package)
        yield from _files(root, package.replace(".", "/"))


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _files(item, f"{name}/{item.name}")
        elif item.name.endswith(".py"):
            yield f"{name}/{item.name}", item.read_bytes()
