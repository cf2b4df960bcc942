"""Limit the memory of streams: one budget for the server, and fair shares of it."""

from headrace.server.shares.budget import Budget, Holder, Place, Share, ShortError

__all__ = ["Budget", "Holder", "Place", "Share", "ShortError"]
