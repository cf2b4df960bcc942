"""What the ``s3`` fixture hands to a test."""

from __future__ import annotations

from dataclasses import dataclass

from demo.object_store import Weed


@dataclass(frozen=True, slots=True)
class S3:
    """A place of one's own in the running S3 store.

    Attributes:
        weed: The store: endpoint, credentials, bucket.
        prefix: Key prefix of this test alone, without slashes at its ends.
    """

    weed: Weed
    prefix: str

    def url(self, name: str) -> str:
        """Return the ``s3://`` URL of ``name`` under this test's prefix."""
        return f"s3://{self.weed.bucket}/{self.prefix}/{name}"

    def key(self, name: str) -> str:
        """Return the key of ``name`` under this test's prefix."""
        return f"{self.prefix}/{name}"
