"""What draws a run, by name: MLflow, Weights & Biases, TensorBoard and OpenTelemetry.

Each is imported when its name is given, and gets numbers by name, and the step they belong to.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace.errors import ConfigurationError

Sink = Callable[[dict[str, float], int], Any]


def sink_named(name: str) -> Sink:
    """Return what logs to a tool.

    Args:
        name: Of `SINKS`.

    Raises:
        ConfigurationError: The tool is not installed.
    """
    return SINKS[name]()


def _mlflow() -> Sink:
    mlflow = _tool("mlflow", "mlflow", "mlflow-skinny")

    def log(found: dict[str, float], step: int) -> None:
        # Sent by a thread of MLflow's: the loop does not wait for a tracking server.
        mlflow.log_metrics(found, step=step, synchronous=False)

    return log


def _wandb() -> Sink:
    wandb = _tool("wandb", "wandb", "wandb")

    def log(found: dict[str, float], step: int) -> None:
        del step  # W&B counts its own
        # Goes with the next call of the user's, so that it does not count as a step.
        wandb.log(found, commit=False)

    return log


def _tensorboard() -> Sink:
    board = _tool("tensorboard", "torch.utils.tensorboard", "tensorboard")
    # Named as TensorBoard does, but below where the process is now: each write opens the file anew.
    name = f"{datetime.now().astimezone():%b%d_%H-%M-%S}_{socket.gethostname()}"
    writer = board.SummaryWriter(str(Path("runs", name).absolute()))

    def log(found: dict[str, float], step: int) -> None:
        for name, value in found.items():
            writer.add_scalar(name, value, step)

    return log


def _opentelemetry() -> Sink:
    metrics = _tool("opentelemetry", "opentelemetry.metrics", "opentelemetry-sdk")
    meter, gauges = metrics.get_meter("headrace.client"), dict[str, Any]()

    def log(found: dict[str, float], step: int) -> None:
        del step  # a number of its own among those found
        for name, value in found.items():
            # Names have letters, digits and "_.-/" there, as ours do.
            if name not in gauges:
                gauges[name] = meter.create_gauge(name)
            gauges[name].set(value)

    return log


SINKS: Mapping[str, Callable[[], Sink]] = {
    "mlflow": _mlflow,
    "opentelemetry": _opentelemetry,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}


def _tool(name: str, module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"log={name!r} needs the package {package}, which cannot be imported here ({error}): "
            f"pip install {package}, or give a function of a dictionary"
        ) from error
