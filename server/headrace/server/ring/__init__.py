"""Batches in shared memory for clients of the same host."""
