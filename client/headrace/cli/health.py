"""`headrace health`: the standard health check, for probes that need a command."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli._access_options import access_of, access_options
from headrace.cli._types import TARGET
from headrace.errors import DatasetNotFoundError


@click.command(name="health")
@click.argument("target", metavar="TARGET", type=TARGET)
@click.option("--service", default="", help="Dataset to check. [the whole server]")
@click.option("--timeout-s", type=click.FloatRange(min=0.1), default=5.0, show_default=True)
@access_options
def command(
    *,
    target: str,
    service: str,
    timeout_s: float,
    tls: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
) -> int:
    """Ask the server at TARGET whether it serves; exit code 0 if so, else 1.

    Kubernetes' own gRPC probes speak neither TLS nor unix sockets; a probe with this command does.

    \b
    headrace health unix:/run/headrace/server.sock
    headrace health localhost:50051 --tls-ca /etc/headrace-tls/ca.crt
    """
    import grpc  # noqa: PLC0415 - a command loads what it needs when it is called
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    from headrace.client.servers.endpoints import Endpoint  # noqa: PLC0415
    from headrace.client.servers.status import error_from_call  # noqa: PLC0415
    from headrace.client.servers.wrong_protocol import explained  # noqa: PLC0415

    access = access_of(
        tls=tls, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file
    )
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
                    "names those that it serves",
                    dataset=service,
                ) from failure
            error = error_from_call(failure, target=target)
            raise explained(error, Endpoint(target, access)) from failure
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    click.echo(status)
    return 0 if status == "SERVING" else 1
