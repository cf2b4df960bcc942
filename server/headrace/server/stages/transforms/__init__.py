"""Functions that the server's operator has registered, over all columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.server.settings.numbers import check_numbers
from headrace.server.settings.plug_settings import PlugSettings
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stages.transforms.call_transform import CallTransform, wanted_transform
from headrace.server.stages.transforms.transform_config import transform_configs
from headrace.server.stages.transforms.transform_pool import TransformPool, check_transforms
from headrace.server.stream.stage_plugs import StageKind, StagePlug
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import transforms_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSettings(PlugSettings):
    """The settings of transforms.

    Attributes:
        transforms: Functions of Arrow batches that requests may name, each as
            ``NAME=module:function@version``; docs/server-stages.md describes them.
        transform_workers: Maximum number of processes per transform. The default is arbitrary.
        transform_timeout_s: How long a transform may work on one batch. The default is as long as
            clients commonly tolerate silence.
    """

    transforms: tuple[str, ...] = ()
    transform_workers: int = 2
    transform_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_numbers(self, least={"transform_workers": 1}, positive=["transform_timeout_s"])


class Plug(StagePlug):
    """The stages of a server, with the processes that call the functions."""

    settings = TransformSettings

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        del metrics
        own = config.of_plug(TransformSettings)
        pool = TransformPool(
            transform_configs(own.transforms),
            workers=own.transform_workers,
            timeout_s=own.transform_timeout_s,
            max_batch_bytes=config.max_batch_bytes,
        )
        self._pool = pool
        self.kinds = (
            StageKind(
                "transform",
                pb.Transform,
                lambda options, _: CallTransform(options, pool),
                lambda options: wanted_transform(options, pool).title,
            ),
        )

    @classmethod
    def check(cls, config: ServerConfig) -> Iterator[str]:
        # In other processes, where the functions may do what they like.
        if stated := config.of_plug(TransformSettings).transforms:
            check_transforms(transform_configs(stated).values())
            yield f"transforms {', '.join(stated)}"

    def close(self) -> None:
        self._pool.close()
