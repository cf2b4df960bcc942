"""Batches in gRPC's messages, compressed by LZ4 where they shrink."""

from headrace.client.transports.lz4.feed import Lz4Plug as Plug

__all__ = ["Plug"]
