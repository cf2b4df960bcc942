"""The datasets that a server serves, and how they change while it runs.

Contract of a change:

1. A new dataset is served as soon as it is open. A dataset that cannot be opened does not affect
   others: its health is NOT_SERVING, and the next change tries it again.
2. A removed dataset is not found by calls, and its streams end between two batches with
   ``DATASET_NOT_FOUND``.
3. A dataset with changed settings is opened again under its name. Streams of the old one end
   between two batches with ``REBALANCE``. If the content is the same, they resume from their
   token; otherwise they get ``TOKEN_DATASET_CHANGED``. If it cannot be opened, the old one stays.
4. A new or changed dataset is first opened in a separate process, which decodes a few of its
   blocks. If that process dies, the dataset counts as one that cannot be opened.
5. Streams of other datasets are not affected.
6. The cache drops the blocks of removed datasets. Their stores are closed when their streams have
   ended, or after ``drain_s``.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial

from grpc_health.v1 import health_pb2

from headrace.errors import DatasetNotFoundError, HeadraceError, RebalanceError
from headrace.server.cache.read_observer import StoreHealth
from headrace.server.datasets.open_served import open_served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.front.health import Health
from headrace.server.front.hidden_paths import DatasetPlaces
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.server.stream.parts import Parts
from headrace.server.telemetry.logs import event
from headrace.storage import Trial, try_datasets

_Status = health_pb2.HealthCheckResponse

_log = logging.getLogger(__name__)


class Roster:
    """Opens and retires datasets.

    Args:
        parts: What it shares with other parts of the server; the catalog is empty at first.
        health: Reports each dataset, unless there is access control: everybody may read health.
        places: Remembers the URL of each dataset.
    """

    def __init__(self, parts: Parts, *, health: Health, places: DatasetPlaces) -> None:
        self._config, self._catalog = parts.config, parts.catalog
        self._cache, self._streams = parts.cache, parts.streams
        self._health = health
        self._places = places
        self._store_health = StoreHealth(self._report_store)
        tracing = () if parts.tracing is None else (parts.tracing,)
        self._observers = (parts.metrics, *tracing, self._store_health)
        self._served: dict[str, DatasetConfig] = {}
        self._changing = threading.Lock()

    def open_all(self) -> None:
        """Open every dataset of the configuration.

        Raises:
            HeadraceError: A dataset cannot be opened.
        """
        for name, config in self._config.dataset_configs.items():
            self._catalog.put(self._opened(name, config))
            self._served[name] = config

    def tell_health(self) -> None:
        """Report all datasets as serving."""
        for name in self._catalog.names:
            self._set_health(name, _Status.SERVING)

    def change_to(self, wanted: Mapping[str, DatasetConfig]) -> list[str]:
        """Serve these datasets and no others.

        Returns:
            The names of datasets that could not be opened.
        """
        with self._changing:
            retired = [self._remove(name) for name in sorted(self._served.keys() - wanted.keys())]
            failed = []
            new = {name: one for name, one in wanted.items() if self._served.get(name) != one}
            refused = self._tried(new)
            for name, config in new.items():
                served = self._try_open(name, config, refused.get(name))
                if served is None:
                    failed.append(name)
                else:
                    retired += self._replace(served, config)
            self._dispose(retired)
            return failed

    def close(self) -> None:
        """Close the connections to all stores."""
        self._catalog.close()

    def _opened(self, name: str, config: DatasetConfig) -> ServedDataset:
        served = open_served(
            name,
            config,
            cache=self._cache,
            max_batch_bytes=self._config.max_batch_bytes,
            observers=self._observers,
        )
        # The source of a stored index lies elsewhere.
        for url in (config.place[0], served.dataset.url):
            self._places.add(url)
        return served

    def _tried(self, new: Mapping[str, DatasetConfig]) -> Mapping[str, HeadraceError]:
        """Open datasets in another process first, so that none can crash this one."""
        return try_datasets(
            {
                name: Trial(*config.place, store=config.store, source=config.source)
                for name, config in new.items()
            }
        )

    def _try_open(
        self, name: str, config: DatasetConfig, refused: HeadraceError | None
    ) -> ServedDataset | None:
        try:
            if refused is not None:
                raise refused
            return self._opened(name, config)
        except HeadraceError as error:
            kept = name in self._served
            _log.error(
                "dataset cannot be opened: %s",
                error.message,
                extra=event(dataset=name, reason=error.reason, old_one_stays=kept),
            )
            if not kept:
                self._set_health(name, _Status.NOT_SERVING)
            return None

    def _replace(self, served: ServedDataset, config: DatasetConfig) -> list[ServedDataset]:
        before = self._catalog.put(served)
        self._served[served.name] = config
        self._set_health(served.name, _Status.SERVING)
        self._store_health.forget(served.name)
        _log.info(
            "dataset served",
            extra=event(
                dataset=served.name,
                fingerprint=served.dataset.fingerprint,
                samples=served.dataset.sample_count,
            ),
        )
        if before is None:
            return []
        self._streams.end_dataset(before.retirement, _renewed)
        return [before]

    def _remove(self, name: str) -> ServedDataset:
        del self._served[name]
        gone = self._catalog.take(name)
        self._store_health.forget(name)
        self._set_health(name, _Status.SERVICE_UNKNOWN)
        _log.info("dataset removed", extra=event(dataset=name))
        self._streams.end_dataset(gone.retirement, partial(_removed, name))
        return gone

    def _dispose(self, retired: Iterable[ServedDataset]) -> None:
        """Close retired datasets when their streams have ended, or after a deadline."""
        deadline = time.monotonic() + self._config.drain_s
        for served in retired:
            self._streams.wait_dataset(served.retirement, deadline)
            served.dispose(self._cache)

    def _report_store(self, name: str, is_healthy: bool) -> None:  # noqa: FBT001 - it is the news
        if name not in self._served:
            return
        if is_healthy:
            _log.info("store answers again", extra=event(dataset=name))
        else:
            _log.error("store does not answer", extra=event(dataset=name))
        self._set_health(name, _Status.SERVING if is_healthy else _Status.NOT_SERVING)

    def _set_health(self, name: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        if not self._config.tokens:
            self._health.set(name, status)


def _renewed() -> HeadraceError:
    return RebalanceError("this dataset was reopened here; reconnect to continue")


def _removed(name: str) -> HeadraceError:
    return DatasetNotFoundError(
        f"dataset {name!r} is no longer served here; ask its operator, or list the datasets",
        dataset=name,
    )
