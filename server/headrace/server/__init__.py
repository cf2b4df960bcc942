"""The server: batches out of shards, cached, assembled and streamed.

Names are imported when they are used, so that a module of this package can compile the loops.
"""

from importlib import import_module
from typing import TYPE_CHECKING

import headrace.errors  # noqa: F401 - first of all, for it refuses Windows

try:
    import pyarrow as pa  # noqa: F401 - first, for the message
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "headrace.server needs pyarrow, which is not installed here: "
        "pip install 'headrace[server]'",
        name="pyarrow",
    ) from error

if TYPE_CHECKING:
    from headrace.server.process.check_config import Finding, check_config
    from headrace.server.process.serve import serve
    from headrace.server.rpc.server import Server, start_server
    from headrace.server.settings.config_layers import ConfigSource, ignored_variables
    from headrace.server.settings.config_text import config_text
    from headrace.server.settings.dataset_config import DatasetConfig
    from headrace.server.settings.server_config import ServerConfig
    from headrace.server.telemetry.logs import start_logging

__all__ = [
    "ConfigSource",
    "DatasetConfig",
    "Finding",
    "Server",
    "ServerConfig",
    "check_config",
    "config_text",
    "ignored_variables",
    "serve",
    "start_logging",
    "start_server",
]

_MODULES = {
    "ConfigSource": "settings.config_layers",
    "DatasetConfig": "settings.dataset_config",
    "Finding": "process.check_config",
    "Server": "rpc.server",
    "ServerConfig": "settings.server_config",
    "check_config": "process.check_config",
    "config_text": "settings.config_text",
    "ignored_variables": "settings.config_layers",
    "serve": "process.serve",
    "start_logging": "telemetry.logs",
    "start_server": "rpc.server",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
