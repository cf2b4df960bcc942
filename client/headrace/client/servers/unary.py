"""Ask servers about datasets: unary calls, with errors of our tree.

Contract of `fetch_from_any`, which is as far as possible that of a stream's reader:

1. Success: all datasets, as one server describes them.
2. Temporary failure: the next server is asked after the wait that `Patience` names; the caller sees
   only the log.
3. Permanent failure, or ``connect_s`` after the first try: the error is raised; it says which hop
   failed, since when, and what was tried.
4. A call that hangs takes only a share of the time, if there are others to ask.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator, Sequence

import grpc

from headrace.client.options.access import Access
from headrace.client.options.settings import Backoff, Deadlines
from headrace.client.options.where import dataset_request, kept_in
from headrace.client.servers.endpoints import Endpoint, Endpoints
from headrace.client.servers.replicas import Seat, fixed_endpoints
from headrace.client.servers.retry_policy import Patience
from headrace.client.servers.status import error_from_call
from headrace.client.servers.wrong_protocol import explained
from headrace.errors import FilterPendingError, HeadraceError, StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc

_FINGERPRINT = re.compile("[0-9a-f]{32}")
_COUNT_LIMIT = 1 << 42
"""Most samples of a dataset; docs/order.md."""

_LEAST_CALL_S = 0.001
"""With less time, gRPC fails a call without sending it."""

_LAST_TRY_S = 1.0
"""How late the last try may end: cutting it short would hide the cause. Arbitrary."""

_TITLE_NAMES = 4


def fetch_from_any(
    endpoints: Endpoints,
    wanted: Sequence[pb.GetDatasetRequest],
    *,
    deadlines: Deadlines,
) -> list[pb.GetDatasetResponse]:
    """Ask servers in turn for some datasets until one answers, by the contract above.

    Args:
        endpoints: The servers.
        wanted: The datasets.
        deadlines: ``connect_s`` bounds the whole call.

    Raises:
        DatasetNotFoundError: A server has no dataset of that name.
        ServerUnreachableError: No server answered in time.
    """
    patience = Patience(
        deadlines, Backoff(), reading=_title(wanted), has_others=endpoints.has_others
    )
    started = time.monotonic()
    patience.start(started)
    # Only Ctrl-C ends the wait sooner.
    never = threading.Event()
    turn: Iterator[Endpoint] = iter(())
    while True:
        asked = ", ".join(endpoints.names)
        passed_s = time.monotonic() - started
        endpoint = None
        try:
            endpoint = next(turn, None)
            if endpoint is None:
                turn = endpoints.each(never, failing_s=passed_s)
                continue
            asked = endpoint.address
            return _fetch(
                endpoint, wanted, limit_s=_limit_s(endpoints, endpoint, deadlines, passed_s)
            )
        except HeadraceError as error:
            if isinstance(error, FilterPendingError) and endpoint is not None:
                # This server is already at work for us: others would start from scratch.
                turn, started = itertools.chain([endpoint], turn), time.monotonic()
            wait_s = patience.fail(
                explained(error, endpoint) if patience.is_first_contact else error,
                asked=asked,
                now=time.monotonic(),
            )
        never.wait(wait_s)


def fetch_dataset(
    target: str, name: str, *, deadlines: Deadlines, access: Access, where: str = ""
) -> pb.Dataset:
    """Ask a server for the current version of one dataset.

    Args:
        target: The server's gRPC address.
        name: The dataset.
        deadlines: ``connect_s`` bounds the call, with all tries.
        access: How to authenticate.
        where: A filter of rows that the server evaluates; empty for none.

    Raises:
        DatasetNotFoundError: The server has no dataset of that name.
        ServerUnreachableError: The server did not answer in time.
    """
    wanted = [dataset_request(name, "", where)]
    endpoints = fixed_endpoints([target], access, seat=Seat())
    return fetch_from_any(endpoints, wanted, deadlines=deadlines)[0].dataset


def _limit_s(
    endpoints: Endpoints, endpoint: Endpoint, deadlines: Deadlines, passed_s: float
) -> float:
    """Return how long one server may take: its share of the time, or the rest of it."""
    if endpoint.is_private:
        # It was just started for us, however long that took.
        return deadlines.connect_s
    left_s = max(deadlines.connect_s - passed_s, min(_LAST_TRY_S, deadlines.connect_s))
    return min(left_s, deadlines.connect_s / len(endpoints.names))


def _title(wanted: Sequence[pb.GetDatasetRequest]) -> str:
    names = [request.name for request in wanted]
    return " + ".join(names if len(names) <= _TITLE_NAMES else [*names[:_TITLE_NAMES], "…"])


def _fetch(
    endpoint: Endpoint, wanted: Sequence[pb.GetDatasetRequest], *, limit_s: float
) -> list[pb.GetDatasetResponse]:
    """Ask one server once; all calls together end within ``limit_s``."""
    access, until = endpoint.access, time.monotonic() + limit_s
    with access.open_channel(endpoint.address) as channel:
        stub = rpc.ShardServiceStub(channel)
        try:
            return [
                _checked(
                    stub.GetDataset(
                        _in_version(request, endpoint),
                        timeout=max(_LEAST_CALL_S, until - time.monotonic()),
                        metadata=access.metadata(),
                    ),
                    target=endpoint.address,
                )
                for request in wanted
            ]
        except grpc.RpcError as failure:
            raise error_from_call(failure, target=endpoint.address) from failure


def _in_version(request: pb.GetDatasetRequest, endpoint: Endpoint) -> pb.GetDatasetRequest:
    if request.fingerprint or not endpoint.versions:
        return request
    return pb.GetDatasetRequest(
        name=request.name, stages=request.stages, fingerprint=endpoint.version_of(request.name)
    )


def _checked(answer: pb.GetDatasetResponse, *, target: str) -> pb.GetDatasetResponse:
    """Refuse a description that no dataset can have."""
    found = answer.dataset
    if not 0 <= found.sample_count < _COUNT_LIMIT:
        raise StreamCorruptError(
            f"{target} says that {found.name[:100]!r} has the sample_count {found.sample_count}; "
            f"expected one in [0, {_COUNT_LIMIT})",
            target=target,
        )
    if not _FINGERPRINT.fullmatch(found.fingerprint):
        raise StreamCorruptError(
            f"{target} says that {found.name[:100]!r} has the fingerprint "
            f"{found.fingerprint[:100]!r}; expected 32 lower-case hexadecimal digits",
            target=target,
        )
    kept_in(found, target=target)
    return answer
