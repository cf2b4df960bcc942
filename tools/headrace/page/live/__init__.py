"""Query a running server at most once per second, and only while somebody looks."""
