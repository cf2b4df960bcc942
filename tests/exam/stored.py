"""A real S3 store with the samples of an entry in it, that can be down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.peers.store import upload
from demo.object_store import start_weed
from support.proxy import Proxy, proxied


@dataclass(frozen=True, slots=True)
class Stored:
    """A folder in a store.

    Attributes:
        folder: Its URL.
        environment: Variables in which libraries find the store.
    """

    folder: str
    environment: dict[str, str]
    _proxy: Proxy

    @contextmanager
    def down(self) -> Iterator[None]:
        """Reset all connections meanwhile."""
        self._proxy.break_off()
        try:
            yield
        finally:
            self._proxy.mend()


@contextmanager
def stored(folder: Path, place: Path) -> Iterator[Stored]:
    """Run a store that has a copy of a folder."""
    with start_weed(place) as weed, proxied(urlsplit(weed.endpoint).netloc) as proxy:
        upload(folder, weed, folder.name)
        names = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT_URL"}
        environment = {
            **weed.environment(),
            **dict.fromkeys(sorted(names), f"http://{proxy.address}"),
        }
        more = {"AWS_REGION": weed.region, "AWS_ALLOW_HTTP": "true"}
        yield Stored(weed.url(folder.name), {**environment, **more}, proxy)
