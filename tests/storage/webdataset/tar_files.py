"""Small tar files for tests, written by Python's own writer."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path


def write_tar(path: Path, members: Mapping[str, bytes], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Write members in the order given and return the file's bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members, form=form))
    return path.read_bytes()


def tar_bytes(members: Mapping[str, bytes], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar file of the members in the order given."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return sink.getvalue()


def samples(first: int, stop: int, *, size: int = 100) -> dict[str, bytes]:
    """Return members of samples with an image of ``size`` bytes, a class and a text each."""
    members = {}
    for number in range(first, stop):
        key = f"part/{number:06d}"
        members[f"{key}.JPG"] = bytes([number % 256]) * (size + number % 7)
        members[f"{key}.cls"] = f"{number % 10}\n".encode()
        if number % 3:
            members[f"{key}.txt"] = f"flower {number} 🌷".encode()
    return members


def wanted(first: int, stop: int, *, size: int = 100) -> list[dict[str, object]]:
    """Return the samples that those members are."""
    return [
        {
            "__key__": f"part/{number:06d}",
            "cls": number % 10,
            "jpg": bytes([number % 256]) * (size + number % 7),
            "txt": f"flower {number} 🌷" if number % 3 else None,
        }
        for number in range(first, stop)
    ]
