"""`headrace list`: list the datasets of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import grpc

from headrace.cli.options.access import access_options
from headrace.cli.options.objects import ObjectCommand
from headrace.cli.options.shared import timeout_option
from headrace.cli.options.types import TARGET
from headrace.cli.show.texts import counted, size
from headrace.client import Access
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.status import error_from_call
from headrace.client.servers.wrong_protocol import explained
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc
from headrace.v1.shard_service_pb2 import Dataset


@click.command(name="list", cls=ObjectCommand)
@click.argument("target", metavar="TARGET", type=TARGET, envvar="HEADRACE_TARGET")
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per dataset.")
@access_options
def command(
    *,
    target: str,
    timeout_s: float,
    as_json: bool,
    access: Access,
) -> None:
    """List the datasets of the server at TARGET that you may read.

    \b
    headrace list localhost:50051
    headrace list headrace:50051 --token-file token --json
    """
    count = 0
    for dataset in _datasets(target, access, timeout_s):
        count += 1
        click.echo(json.dumps(_facts(dataset)) if as_json else _line(dataset))
    if not count:
        click.echo(f"{target} serves no dataset that you may read.", err=True)


def _datasets(target: str, access: Access, timeout_s: float) -> Iterator[Dataset]:

    request = pb.ListDatasetsRequest()
    with access.open_channel(target) as channel:
        list_datasets = rpc.ShardServiceStub(channel).ListDatasets
        while True:
            try:
                answer = list_datasets(request, timeout=timeout_s, metadata=access.metadata())
            except grpc.RpcError as failure:
                error = error_from_call(failure, target=target)
                raise explained(error, Endpoint(target, access)) from failure
            yield from answer.datasets
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token


def _line(dataset: Dataset) -> str:
    columns = ", ".join(column.name for column in dataset.columns)
    return (
        f"{dataset.name}: {counted(dataset.sample_count, 'sample')} in "
        f"{counted(dataset.shard_count, 'shard')}, "
        f"{size(dataset.raw_bytes)} raw, {size(dataset.stored_bytes)} stored; {columns}"
    )


def _facts(dataset: Dataset) -> dict[str, object]:
    return {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "sample_count": dataset.sample_count,
        "shard_count": dataset.shard_count,
        "raw_bytes": dataset.raw_bytes,
        "stored_bytes": dataset.stored_bytes,
        "columns": [column.name for column in dataset.columns],
    }
