"""`headrace health`: the standard health check, for probes that need a command."""

from __future__ import annotations

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.cli.options.access import access_options
from headrace.cli.options.objects import ObjectCommand
from headrace.cli.options.shared import timeout_option
from headrace.cli.options.types import TARGET
from headrace.client import Access
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.status import error_from_call
from headrace.client.servers.wrong_protocol import explained
from headrace.errors import DatasetNotFoundError


@click.command(name="health", cls=ObjectCommand)
@click.argument("target", metavar="TARGET", type=TARGET, envvar="HEADRACE_TARGET")
@click.option(
    "--service",
    default="",
    show_default="the whole server",
    help="Dataset to check, or /live for whether the server answers at all.",
)
@timeout_option
@access_options
def command(
    *,
    target: str,
    service: str,
    timeout_s: float,
    access: Access,
) -> int:
    """Check whether the server at TARGET is serving.

    The exit code is 0 if it is, and 1 if not. TARGET is best the address of --health-listen, where
    no other call delays the answer; any other address answers too. Kubernetes' gRPC probes support
    neither TLS nor unix sockets; an exec probe with this command supports both.

    \b
    headrace health localhost:50052
    headrace health localhost:50052 --service /live
    headrace health unix:/run/headrace/health.sock
    """
    with access.open_channel(target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service),
                timeout=timeout_s,
                metadata=access.metadata(),
            )
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.NOT_FOUND:
                raise DatasetNotFoundError(
                    f"{target} serves no dataset {service!r} (NOT_FOUND); `headrace list {target}` "
                    "shows those that it serves",
                    dataset=service,
                ) from failure
            error = error_from_call(failure, target=target)
            raise explained(error, Endpoint(target, access)) from failure
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    click.echo(status)
    return 0 if status == "SERVING" else 1
