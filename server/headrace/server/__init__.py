"""The server: batches out of shards, cached, assembled and streamed."""

from headrace.server._check import Finding, check_config
from headrace.server._config import ServerConfig
from headrace.server._config_layers import ConfigSource, ignored_variables
from headrace.server._config_text import config_text
from headrace.server._dataset_config import DatasetConfig
from headrace.server._logs import start_logging
from headrace.server._serve import serve
from headrace.server._server import Server, start_server

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
