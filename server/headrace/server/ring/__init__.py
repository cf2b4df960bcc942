"""Send batches through shared memory to clients on the same host."""
