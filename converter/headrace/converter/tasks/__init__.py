"""Run tasks, which cut samples into shards and upload them, and commit their results."""
