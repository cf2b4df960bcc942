"""Watch a running server, with at most one question per second, and none without viewers."""
