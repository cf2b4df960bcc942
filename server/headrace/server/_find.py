"""Find what a request reads: the dataset it names, in the version that it goes on with."""

from __future__ import annotations

from headrace.order import decode_token
from headrace.server._access import ANYBODY, Caller
from headrace.server._datasets import Catalog, ServedDataset
from headrace.v1 import shard_service_pb2 as pb

Request = pb.ReadBatchesRequest | pb.GetBatchRequest | pb.GetSamplesRequest


def find(request: Request, catalog: Catalog, caller: Caller = ANYBODY) -> ServedDataset:
    """Return what a request reads.

    A version that the request names, or its token, is opened if the store still has it: so a run
    keeps its order after an append.

    Raises:
        BadArgumentError: No dataset is named, or the token is needed and none.
        DatasetNotFoundError: The caller may read no dataset of that name.
        TokenMalformedError: The token is none.
        TokenDatasetChangedError: The store has no such version, or no longer.
    """
    return catalog.get(request.dataset, caller).version(_fingerprint(request))


def _fingerprint(request: Request) -> str:
    if request.fingerprint or isinstance(request, pb.GetSamplesRequest):
        return request.fingerprint
    if request.WhichOneof("start") != "resume_token":
        return ""
    token = decode_token(request.resume_token)
    return token.fingerprint
