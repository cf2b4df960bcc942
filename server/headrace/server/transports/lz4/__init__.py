"""Send batches in gRPC's messages, compressed by LZ4 where they shrink."""

from headrace.server.transports.lz4.compression import Compression as Plug

__all__ = ["Plug"]
