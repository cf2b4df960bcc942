"""The server: batches out of shards, cached, assembled and streamed."""

from headrace.server._config import ServerConfig
from headrace.server._dataset_config import DatasetConfig
from headrace.server._server import Server, serve, start_server

__all__ = ["DatasetConfig", "Server", "ServerConfig", "serve", "start_server"]
