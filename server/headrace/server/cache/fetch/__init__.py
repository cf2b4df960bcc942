"""Blocks on their way into the cache: fair queues, threads, neighbouring blocks in one read."""
