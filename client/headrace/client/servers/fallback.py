"""Servers, and a private server of the same data that steps in while none of them answers.

Contract of `FallbackEndpoints`:

1. As long as a server answers, the private one is not started.
2. When each server was asked and none has answered for ``after_s``, the private one takes over. If
   it fails too, it and the servers are asked in turn.
3. While it serves, the servers are asked at intervals, between two events and without waiting.
   When one answers with the same version of every dataset, the private endpoint is outdated, and
   the next choice is a server.
4. A private server that cannot start is an error that names both failures.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import SystemRandom

import grpc

from headrace.client.options.settings import Deadlines
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.private_server import PrivateEndpoints
from headrace.client.servers.replicas import FixedEndpoints
from headrace.client.servers.unary import fetch_dataset
from headrace.errors import HeadraceError
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc

_log = logging.getLogger(__name__)

_CALL_S = 5.0
"""Most seconds for a server to describe a dataset, which it has in memory. Arbitrary."""


class FallbackEndpoints:
    """Chooses among servers and a private one; only one thread at a time may call `choose`."""

    def __init__(
        self,
        servers: FixedEndpoints,
        private: PrivateEndpoints,
        *,
        after_s: float,
    ) -> None:
        """Prepare; nothing is asked or started.

        Args:
            servers: The preferred servers.
            private: Serves the same datasets under the same names.
            after_s: Seconds without a server before the private one takes over, > 0; from then on,
                half of it is the mean time between two looks for a server.
        """
        self._servers, self._private = servers, private
        self._after_s = after_s
        self._failing_since: float | None = None
        self._search: _Search | None = None

    def __reduce__(self) -> tuple[Callable[..., FallbackEndpoints], tuple[object, ...]]:
        """Unpickle without any call in progress."""
        make = partial(FallbackEndpoints, after_s=self._after_s)
        return make, (self._servers, self._private)

    @property
    def names(self) -> tuple[str, ...]:
        """The servers, then the private one."""
        return (*self._servers.names, *self._private.names)

    def choose(self, attempt: int, stop: threading.Event) -> Endpoint:
        """Return a server as long as one may still answer."""
        if self._search is not None:
            in_turn = attempt % (len(self._servers.addresses) + 1)
            return self._servers.choose(in_turn - 1, stop) if in_turn else self._own(stop)
        if not self._is_hopeless(attempt):
            return self._servers.choose(attempt, stop)
        endpoint = self._own(stop)
        self._search = _Search(self._servers, self._versions(endpoint), self._after_s / 2)
        _log.warning(
            "no server answers at %s; reading through %s until one does",
            ", ".join(self._servers.names),
            *self._private.names,
        )
        return endpoint

    def each(self, stop: threading.Event, *, failing_s: float) -> Iterator[Endpoint]:
        """Yield the servers, and the private one if they have failed for long enough."""
        yield from self._servers.each(stop, failing_s=failing_s)
        if failing_s >= self._after_s:
            yield self._own(stop)

    def beside(self, endpoint: Endpoint, stop: threading.Event) -> Endpoint | None:
        """Return another of the servers, and start none."""
        return None if endpoint.is_private else self._servers.beside(endpoint, stop)

    @property
    def has_others(self) -> bool:
        """Return True: there is the private server."""
        return True

    def is_outdated(self, endpoint: Endpoint) -> bool:
        """Return whether a server answers again, while the private one serves."""
        if self._search is None or not endpoint.is_private:
            return False
        if not self._search.has_found():
            return False
        self.close()
        _log.warning("a server at %s answers again; moving back", ", ".join(self._servers.names))
        return True

    def close(self) -> None:
        """Drop all calls in progress; the next choice starts with the servers."""
        search, self._search = self._search, None
        self._failing_since = None
        if search is not None:
            search.close()

    def _is_hopeless(self, attempt: int) -> bool:
        if attempt == 0:
            self._failing_since = None
            return False
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        was_asked = attempt >= len(self._servers.addresses)
        return was_asked and now - self._failing_since >= self._after_s

    def _own(self, stop: threading.Event) -> Endpoint:
        try:
            return self._private.choose(0, stop)
        except HeadraceError as error:
            raise type(error)(
                f"no server answers at {', '.join(self._servers.names)}, and the fallback to "
                f"storage fails: {error.message}",
                **error.metadata,
            ) from error

    def _versions(self, endpoint: Endpoint) -> dict[str, str]:
        """Return the fingerprint of each dataset by its name."""
        versions = {}
        for name, _ in self._private.server.sources:
            versions[name] = endpoint.version_of(name) or (
                fetch_dataset(
                    endpoint.address, name, deadlines=Deadlines(), access=endpoint.access
                ).fingerprint
            )
        return versions


class _Search:
    """Looks for a server with the right versions, one call at a time, without waiting."""

    def __init__(self, servers: FixedEndpoints, versions: dict[str, str], probe_s: float) -> None:
        self._servers = servers
        self._wanted = list(versions.items())
        self._probe_s = probe_s
        self._asked = 0
        self._known = 0
        self._next = time.monotonic() + probe_s
        self._channel: grpc.Channel | None = None
        self._answer: grpc.Future[pb.GetDatasetResponse] | None = None

    def has_found(self) -> bool:
        """Continue the search; return whether a server has every dataset."""
        if self._answer is None:
            if time.monotonic() >= self._next:
                self._ask()
            return False
        if not self._answer.done():
            return False
        if not self._is_right(self._answer):
            self._rest()
            return False
        self._known += 1
        if self._known < len(self._wanted):
            self._ask()
            return False
        return True

    def close(self) -> None:
        """Drop the call under way."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._answer = None

    def _ask(self) -> None:
        addresses = self._servers.addresses
        if self._channel is None:
            address = addresses[self._asked % len(addresses)]
            self._channel = self._servers.access.open_channel(address)
        self._answer = rpc.ShardServiceStub(self._channel).GetDataset.future(
            pb.GetDatasetRequest(name=self._wanted[self._known][0]),
            timeout=_CALL_S,
            metadata=self._servers.access.metadata(),
        )

    def _is_right(self, answer: grpc.Future[pb.GetDatasetResponse]) -> bool:
        name, fingerprint = self._wanted[self._known]
        try:
            found = answer.result().dataset.fingerprint
        except grpc.RpcError:
            return False
        if found != fingerprint:
            _log.warning(
                "a server for %r answers, but has version %s; expected %s", name, found, fingerprint
            )
        return found == fingerprint

    def _rest(self) -> None:
        self.close()
        self._asked += 1
        self._known = 0
        # Jittered, so that the ranks of a job do not all come back at once, also where all of them
        # gave Python's own generator the same seed.
        self._next = time.monotonic() + self._probe_s * SystemRandom().uniform(0.5, 1.5)
