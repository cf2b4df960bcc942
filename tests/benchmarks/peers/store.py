"""Copy what readers have written into an S3 store."""

from __future__ import annotations

from pathlib import Path

from demo.object_store import Weed


def upload(folder: Path, weed: Weed, prefix: str) -> None:
    """Copy a folder's files below a prefix of the store's bucket."""
    client = weed.client()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), weed.bucket, f"{prefix}/{path.relative_to(folder)}")
    client.close()
