"""What streams may have of the server's memory: one budget, and fair shares of it."""

from headrace.server.shares.budget import Budget, Holder, Place, Share, ShortError

__all__ = ["Budget", "Holder", "Place", "Share", "ShortError"]
