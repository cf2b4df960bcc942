"""Fetch blocks into the cache: fair queues, threads, several neighbours in one read."""
