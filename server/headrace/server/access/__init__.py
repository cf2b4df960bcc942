"""Who calls, and what they may read: bearer tokens, TLS, the caller's address."""
