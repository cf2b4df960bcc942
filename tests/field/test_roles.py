"""Roles with exactly the documented rights do what the documentation says, and name the others."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.object_store import Weed, start_weed
from headrace.converter import convert_files
from headrace.errors import ObjectNotFoundError, StoreRefusedError
from headrace.storage import RetryPolicy, StoreOptions, open_dataset, open_store
from support.command import run
from support.store_proxy import StoreProxy, store_proxied

_RIGHTS = {
    "get": (["GetObject"], []),
    "list": (["GetObject"], ["ListBucket"]),
    "write": (
        ["GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload"],
        ["ListBucket", "ListBucketMultipartUploads"],
    ),
    "see": ([], ["ListBucket"]),
}
"""Rights on objects, and on the bucket, by role; docs/stores.md lists them."""


def _identity(name: str) -> dict[str, object]:
    credentials = [{"accessKey": f"key-{name}", "secretKey": f"secret-{name}"}]
    return {"name": name, "credentials": credentials, "actions": [], "policyNames": [name]}


def _policy(name: str) -> dict[str, str]:
    resources = ("arn:aws:s3:::shards/*", "arn:aws:s3:::shards")
    statements = [
        {"Effect": "Allow", "Action": [f"s3:{right}" for right in rights], "Resource": [resource]}
        for rights, resource in zip(_RIGHTS[name], resources, strict=True)
        if rights
    ]
    content = json.dumps({"Version": "2012-10-17", "Statement": statements})
    return {"name": name, "content": content}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """A real store with a role for each set of rights, and a dataset of each layout."""
    folder = tmp_path_factory.mktemp("roles")
    admin = {
        "name": "admin",
        "credentials": [{"accessKey": "headrace-admin", "secretKey": "headrace-admin-secret"}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    roles = {
        "identities": [admin, *map(_identity, _RIGHTS)],
        "policies": list(map(_policy, _RIGHTS)),
    }
    (folder / "roles.json").write_text(json.dumps(roles))
    (folder / "a.jsonl").write_text("".join(f'{{"x": {x}}}\n' for x in range(9)))
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": range(9)}), sink)
    with start_weed(folder / "weed", flags=[f"-s3.config={folder}/roles.json"]) as weed:
        writer = _as("write", weed.endpoint)
        for kind in ("arrow", "mds"):
            convert_files(
                str(folder / "a.jsonl"),
                f"s3://shards/{kind}",
                source_format="json",
                format=kind,
                options=writer,
            )
        open_store("s3://shards/parquet", options=writer).write("a.parquet", sink.getvalue())
        yield weed


@pytest.fixture
def aws(stored: Weed) -> Iterator[StoreProxy]:
    """The store as AWS shows it: without the right to list, absence is a refusal."""
    with store_proxied(stored.endpoint) as running:
        running.choose = running.choose_whole = lambda _: "hidden"
        yield running


def _as(role: str, endpoint: str) -> StoreOptions:
    return StoreOptions(
        endpoint=endpoint,
        region="us-east-1",
        access_key=f"key-{role}",
        secret_key=f"secret-{role}",
        retry=RetryPolicy(attempts=3, base_s=0.001),
    )


def _environment(role: str, weed: Weed, endpoint: str) -> dict[str, str]:
    return weed.environment() | {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": f"key-{role}",
        "AWS_SECRET_ACCESS_KEY": f"secret-{role}",
    }


@pytest.mark.parametrize("place", ["arrow", "mds", "parquet/a.parquet"])
def test_get_object_alone_reads_what_is_known_by_name(aws: StoreProxy, place: str) -> None:
    """Shards, MDS and a single file need no other right, although absence looks like refusal."""
    with open_dataset(f"s3://shards/{place}", options=_as("get", aws.endpoint)) as dataset:
        assert list(range(9)) == dataset.read_block(0).column("x").to_pylist()


@pytest.mark.parametrize("command", [("inspect",), ("verify",), ("cat",)])
def test_commands_read_with_get_object_alone(
    stored: Weed, aws: StoreProxy, command: tuple[str, ...]
) -> None:
    """A file that may be beside a dataset, such as packing.json, is missing and not forbidden."""
    found = run(
        *command, "s3://shards/arrow", environment=_environment("get", stored, aws.endpoint)
    )

    assert (0, "") == (found.returncode, found.stderr)


@pytest.mark.parametrize("place", ["parquet", "nothing"])
def test_where_a_listing_is_needed_the_right_is_named(aws: StoreProxy, place: str) -> None:
    """A folder of files cannot be read without a listing: asked once, and told what is missing."""
    with pytest.raises(StoreRefusedError) as caught:
        open_dataset(f"s3://shards/{place}", options=_as("get", aws.endpoint))

    assert "needs the right s3:ListBucket on arn:aws:s3:::shards" in str(caught.value)
    assert f"s3://shards/{place} contains no headrace.json, no index.json that" in str(caught.value)
    assert "gave up" not in str(caught.value)


def test_an_object_that_may_be_missing_names_both_rights(aws: StoreProxy) -> None:
    """Without the right to list nobody can tell which of the two it is."""
    store = open_store("s3://shards/arrow", options=_as("get", aws.endpoint))

    with pytest.raises(StoreRefusedError) as caught:
        store.read("shards/lost")
    assert None is store.entry("shards/lost")

    assert "s3:GetObject on arn:aws:s3:::shards/arrow/shards/lost, or there" in str(caught.value)
    assert "only a role with s3:ListBucket on arn:aws:s3:::shards is told" in str(caught.value)


def test_listing_tells_absence_from_refusal(aws: StoreProxy) -> None:
    """With the right to list, or with one that holds for a prefix, absence is known."""
    store = open_store("s3://shards/arrow", options=_as("list", aws.endpoint))

    with pytest.raises(ObjectNotFoundError, match=r"there is no object for s3://shards/arrow/no$"):
        store.read("no")
    with open_dataset("s3://shards/parquet", options=_as("list", aws.endpoint)) as dataset:
        assert 9 == dataset.sample_count


def test_an_object_that_is_listed_is_refused(stored: Weed) -> None:
    """With the right to list, what may not be read is not said to be missing."""
    store = open_store("s3://shards/arrow", options=_as("see", stored.endpoint))

    for ask in (store.read, store.read_versioned, store.entry):
        with pytest.raises(
            StoreRefusedError,
            match=r"needs the right s3:GetObject on arn:aws:s3:::shards/arrow/headrace\.json$",
        ):
            ask("headrace.json")


@pytest.mark.parametrize("name", ["read", "read_versioned", "entry"])
def test_a_wrong_key_is_not_taken_for_absence(stored: Weed, name: str) -> None:
    """Not even by a request whose refusal has no body, such as HEAD."""
    store = open_store("s3://shards/arrow", options=_as("nobody", stored.endpoint))

    with pytest.raises(StoreRefusedError, match=r"InvalidAccessKeyId.*check the credentials"):
        getattr(store, name)("headrace.json")


def test_writing_names_the_right_that_is_missing(stored: Weed) -> None:
    """Before anything is read from a source: a role for reading cannot convert."""
    store = open_store("s3://shards/arrow", options=_as("list", stored.endpoint))

    with pytest.raises(
        StoreRefusedError, match=r"needs the right s3:PutObject on arn:aws:s3:::shards/arrow/x$"
    ):
        store.write("x", b"")
    with pytest.raises(StoreRefusedError, match=r"s3:DeleteObject on arn:aws:s3:::shards/arrow/x$"):
        store.delete("x")


def test_the_rights_of_a_writer_are_enough_for_its_life(stored: Weed) -> None:
    """Convert, verify and remove what is not needed, as docs/stores.md lists the rights."""
    environment = _environment("write", stored, stored.endpoint)

    for command in (
        ("verify", "s3://shards/arrow"),
        ("gc", "s3://shards/arrow", "--older-than", "0s"),
    ):
        found = run(*command, environment=environment)
        assert (0, "") == (found.returncode, found.stderr)
