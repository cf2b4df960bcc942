"""No error tells another machine where a dataset lies; this machine, and the log, are told."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.errors import BadArgumentError, DatasetNotFoundError, HeadraceError
from headrace.server import DatasetConfig
from headrace.server.front.hidden_paths import DatasetPlaces
from headrace.storage import (
    RetryPolicy,
    ShardWriter,
    StoreOptions,
    commit_dataset,
    open_dataset,
    open_store,
    store_index,
)
from headrace.v1 import ring_pb2
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import small_table, write_dataset
from support.running import server_of
from support.s3 import S3
from support.served import TIMEOUT_S, epoch_request, failure_of, stub_of
from support.store_proxy import Fault, store_proxied

_FOLDER = "telling folder"
_HASTY = RetryPolicy(attempts=1)


@dataclass(frozen=True)
class _Answers:
    """What the calls to one server said, with all that came behind them."""

    over_tcp: str
    over_unix: str
    reasons: frozenset[str]


def _requests(fingerprint: str) -> Iterator[tuple[str, object]]:
    read = epoch_request(dataset="d", fingerprint=fingerprint, global_batch_size=4)
    batch = pb.GetBatchRequest(
        dataset="d",
        fingerprint=fingerprint,
        global_batch_size=4,
        world_size=1,
        epoch_start=pb.EpochStart(),
    )
    yield "ReadBatches", read
    yield "GetBatch", batch
    yield "ExplainBatch", pb.ExplainBatchRequest(batch=batch)
    yield "FindSamples", pb.FindSamplesRequest(batch=batch, sample_ids=range(8))
    samples = pb.GetSamplesRequest(dataset="d", fingerprint=fingerprint, sample_ids=range(8))
    yield "GetSamples", samples
    if fingerprint:
        yield "GetDataset", pb.GetDatasetRequest(name="d", fingerprint=fingerprint)
        asked = pb.AttachTransportRequest(read=read)
        asked.transport.Pack(ring_pb2.Ring(ring_bytes=1 << 20))
        yield "AttachTransport", asked


def _said(address: str, fingerprint: str, reasons: set[str]) -> str:
    """Make every call, and return all that the failed ones say."""
    said = []
    with grpc.insecure_channel(address) as channel:
        for name, request in _requests(fingerprint):
            try:
                answer = getattr(stub_of(channel), name)(request, timeout=TIMEOUT_S)
                list(answer if hasattr(answer, "code") else [answer])
            except grpc.RpcError as error:
                reasons.add(failure_of(error)[1].reason)
                said.append(f"{error.details()} {error.trailing_metadata()}")
    return "\n".join(said)


def _asked(
    config: DatasetConfig, folder: Path, break_it: Callable[[], object], fingerprint: str = ""
) -> _Answers:
    """Serve a dataset, break it, and ask for it in every way."""
    listen = ("127.0.0.1:0", f"unix:{folder}/socket")
    with server_of({"d": config}, listen=listen) as server:
        break_it()
        reasons: set[str] = set()
        over_tcp, over_unix = (_said(address, fingerprint, reasons) for address in server.addresses)
    return _Answers(over_tcp, over_unix, frozenset(reasons))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name tells something, with a dataset of one shard."""
    found = tmp_path / _FOLDER
    write_dataset(str(found), small_table(8), shard_samples=[8])
    return found


def _served(folder: Path | str) -> DatasetConfig:
    return DatasetConfig(url=str(folder), store=StoreOptions(retry=_HASTY))


def _shard(folder: Path) -> Path:
    return folder / "shards" / "part-00000.arrow"


def _corrupt(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _fail(path: Path) -> None:
    """Make the system fail at a file: a link to itself is followed for ever."""
    path.unlink()
    path.symlink_to(path)


def _refuse(path: Path) -> None:
    path.chmod(0)


_root_reads_all = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (_corrupt, "SHARD_CORRUPT"),
        (_cut, "SHARD_CORRUPT"),
        (Path.unlink, "OBJECT_NOT_FOUND"),
        (_fail, "STORE_UNAVAILABLE"),
        pytest.param(_refuse, "STORE_REFUSED", marks=_root_reads_all),
    ],
)
def test_a_broken_shard_is_named_in_its_dataset(
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    break_it: Callable[[Path], None],
    reason: str,
) -> None:
    """By every call that reads it; this machine, and the log, are told the folder too."""
    with caplog.at_level(logging.INFO, "headrace.server"):
        found = _asked(_served(folder), tmp_path, lambda: break_it(_shard(folder)))

    assert {reason} == found.reasons
    assert "telling" not in found.over_tcp
    assert "shards/part-00000.arrow" in found.over_tcp
    assert (reason != "SHARD_CORRUPT") == (str(folder) in found.over_unix)
    assert (reason != "SHARD_CORRUPT") == (str(folder) in caplog.text)


def _drop_tables(folder: Path) -> None:
    for path in (folder / "manifests").iterdir():
        path.unlink()


def _damage_tables(folder: Path) -> None:
    for path in (folder / "manifests").iterdir():
        _cut(path)


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (_drop_tables, "MANIFEST_CORRUPT"),
        (_damage_tables, "MANIFEST_CORRUPT"),
        (lambda folder: _cut(folder / "headrace.json"), "MANIFEST_CORRUPT"),
        (lambda folder: _fail(folder / "headrace.json"), "STORE_UNAVAILABLE"),
    ],
)
def test_a_broken_manifest_is_named_in_its_dataset(
    folder: Path, tmp_path: Path, break_it: Callable[[Path], None], reason: str
) -> None:
    """By every call that names an older version, which is opened when it is first named."""
    with open_dataset(str(folder)) as dataset:
        older = dataset.fingerprint
    store = open_store(str(folder))
    writer = ShardWriter(store, "later.arrow", schema=small_table(1).schema)
    writer.append(small_table(1).to_batches()[0])
    commit_dataset(store, small_table(1).schema, [writer.close()], mode="append")

    found = _asked(_served(folder), tmp_path, lambda: break_it(folder), older)

    assert {reason} == found.reasons
    assert "telling" not in found.over_tcp
    assert "headrace.json" in found.over_tcp or "manifests/" in found.over_tcp
    assert str(folder) in found.over_unix


@pytest.mark.parametrize("is_indexed", [False, True])
def test_files_of_others_are_named_in_their_dataset(tmp_path: Path, *, is_indexed: bool) -> None:
    """Also where an index is served, and the files lie in another folder."""
    folder = tmp_path / _FOLDER / "rows"
    folder.mkdir(parents=True)
    pq.write_table(small_table(8), folder / "a.parquet")
    served = str(folder)
    if is_indexed:
        served = f"{tmp_path / 'telling index'} from {folder}"
        store_index(str(folder), str(tmp_path / "telling index"))

    found = _asked(_served(served), tmp_path, (folder / "a.parquet").unlink)

    assert found.reasons
    assert "telling" not in found.over_tcp
    assert "a.parquet" in found.over_tcp
    assert str(folder) in found.over_unix


@pytest.mark.parametrize("fault", ["down", pytest.param("reset", marks=pytest.mark.long)])
def test_a_store_that_is_down_is_not_described(s3: S3, tmp_path: Path, fault: Fault) -> None:
    """Neither bucket, nor prefix, nor the endpoint are told; what could not be read is."""
    url = s3.url("telling-prefix")
    write_dataset(url, small_table(8), shard_samples=[8])
    with store_proxied(s3.weed.endpoint) as proxy:
        store = StoreOptions(
            endpoint=proxy.endpoint,
            region="us-east-1",
            access_key=s3.weed.reader_access_key,
            secret_key=s3.weed.reader_secret_key,
            retry=_HASTY,
        )

        def break_it() -> None:
            proxy.choose = proxy.choose_whole = lambda *_: fault

        found = _asked(DatasetConfig(url=url, store=store), tmp_path, break_it)

    assert {"STORE_UNAVAILABLE"} == found.reasons
    endpoint = proxy.endpoint.removeprefix("http://")
    hidden = ("telling", s3.weed.bucket, s3.prefix, endpoint)
    assert [] == [text for text in hidden if text in found.over_tcp]
    # The table of blocks is read before the first of them.
    assert "manifests/" in found.over_tcp
    assert url in found.over_unix


_ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.WorldError)
]
_URLS = (
    "/srv/telling/set",
    "/telling",
    "file:///srv/telling/set",
    "telling/set",
    "s3://telling/a/b",
    "s3://telling",
    "gs://telling/a b",
    "https://telling.example/a?x=1",
    "memory://telling/a",
)
_FORMS = (
    "{}: shards/x.arrow is gone",
    "there is no shards/x.arrow in {}",
    "{}/shards/x.arrow has 3 bytes, 4 expected; restore it",
    "no such file: '{}/shards/x.arrow'",
    'could not connect to "{}/shards/x.arrow"',
    "({}//shards/x.arrow), see {}. Restore it.",
    "file {}/shards/x.arrow, at byte 3",
)


@given(
    st.sampled_from(_ERRORS), st.sampled_from(_URLS), st.lists(st.sampled_from(_FORMS), min_size=1)
)
def test_no_form_of_a_url_is_told(kind: type[HeadraceError], url: str, forms: list[str]) -> None:
    """Any error of the world, with the URL as configured or as the store writes it."""
    places = DatasetPlaces()
    places.add(url)
    written = str(Path(url).absolute()) if "://" not in url else url
    text = "; ".join(form.replace("{}", written) for form in forms)

    told = places.without(kind(text, url=written, place=f"{written}/shards/x.arrow"))

    assert kind is type(told)
    said = f"{told.message} {told.metadata}"
    assert "telling" not in said
    assert text.count("shards/x.arrow") == told.message.count("shards/x.arrow")
    assert "shards/x.arrow" == told.metadata["place"]


@pytest.mark.parametrize(
    "text",
    [
        "cannot open /srv/telling/other.txt (No such file)",
        "cannot open '/srv/a telling/other.txt'",
        "no connection to http://10.1.2.3:9000/telling/x?list-type=2",
        "no connection to s3://telling",
        "[Errno 2] No such file: '/opt/telling/x', again",
    ],
)
def test_places_that_are_no_dataset_are_hidden(text: str) -> None:
    """What lies beside the datasets is nobody's but the operator's."""
    told = DatasetPlaces().without(errors.StageFailedError(f"the transform t failed: {text}"))

    assert ("telling" not in told.message, True) == (True, "(hidden)" in told.message)
    assert "10.1.2.3" not in told.message


def test_the_id_of_the_access_key_is_hidden() -> None:
    """Whoever calls learns that the store refuses, and not as whom it was asked."""
    error = errors.StoreRefusedError(
        "the store refuses s3://b/x (403 AccessDenied) to access key AKIATELLING (from env); check"
    )

    told = DatasetPlaces().without(error)

    assert "the store refuses (hidden) (403 AccessDenied) to an access key (from env); check" == (
        told.message
    )


@pytest.mark.parametrize(
    "text",
    [
        "no credentials for s3://b/d x/y: Error from custom-process: TELLING\nTELLING; gave up",
        "the store refuses s3://b/d x/y; newer credentials cannot be read: sh: TELLING",
    ],
)
def test_what_a_source_of_credentials_said_is_hidden(text: str) -> None:
    """A helper's standard error is for the operator; callers learn which file lacks what."""
    places = DatasetPlaces()
    places.add("s3://b/d x")

    told = places.without(errors.StoreUnavailableError(text, url="s3://b/d x/y")).message

    assert "TELLING" not in told
    assert "y" in told
    assert told.endswith("; the server's log says why")


def test_the_oldest_of_too_many_places_is_forgotten() -> None:
    """Then its files are hidden as all others are; what is added again is the youngest."""
    places = DatasetPlaces(most=2)
    for url in ("s3://b/one", "s3://b/two", "s3://b/one", "s3://b/three"):
        places.add(url)

    texts = [f"cannot read s3://b/{name}/shards/x" for name in ("one", "two", "three")]
    told = [places.without(errors.ShardCorruptError(text, shard="x")).message for text in texts]

    assert ["cannot read shards/x", "cannot read (hidden)", "cannot read shards/x"] == told


@pytest.mark.parametrize(
    "error",
    [
        DatasetNotFoundError("there is no dataset '/srv/telling/set' here", dataset="/srv"),
        BadArgumentError("column is '/srv/telling/set'", field="columns"),
        errors.ShardCorruptError("shard shards/x.arrow: 3 and/or 4 bytes/s, 1 / 2", shard="x"),
        errors.InternalError("the server failed; its log says how"),
    ],
)
def test_what_callers_said_comes_back_as_it_was(error: HeadraceError) -> None:
    """So nobody learns where datasets lie by naming paths and looking what becomes of them."""
    places = DatasetPlaces()
    places.add("/srv/telling/set")

    assert error is places.without(error)
