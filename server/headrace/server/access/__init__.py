"""Identify callers and decide what they may read: bearer tokens, TLS, the caller's address."""
