"""Functions that the server's operator has registered, over all columns."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.server.settings.server_config import ServerConfig
from headrace.server.stages.transforms.call_transform import CallTransform, wanted_transform
from headrace.server.stages.transforms.transform_config import transform_configs
from headrace.server.stages.transforms.transform_pool import TransformPool, check_transforms
from headrace.server.stream.stage_plugs import StageKind, StagePlug
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb


class _Transforms(StagePlug):
    def __init__(self, pool: TransformPool) -> None:
        self._pool = pool
        super().__init__(
            [
                StageKind(
                    "transform",
                    pb.Transform,
                    lambda options, _: CallTransform(options, pool),
                    lambda options: wanted_transform(options, pool).title,
                )
            ]
        )

    def close(self) -> None:
        self._pool.close()

    def describe(self, response: pb.GetDatasetResponse) -> None:
        for config in self._pool.configs.values():
            response.transforms.add(name=config.name, version=config.version)


def open_stages(config: ServerConfig, metrics: Metrics) -> StagePlug:
    """Return the stages of a server."""
    del metrics
    return _Transforms(
        TransformPool(
            transform_configs(config.transforms),
            workers=config.transform_workers,
            timeout_s=config.transform_timeout_s,
            max_batch_bytes=config.max_batch_bytes,
        )
    )


def check(config: ServerConfig) -> Iterator[str]:
    """Check in other processes that the registered functions can be called.

    Raises:
        ConfigurationError: One cannot.
    """
    if config.transforms:
        check_transforms(transform_configs(config.transforms).values())
        yield f"transforms {', '.join(config.transforms)}"
