"""Where a stream's batches come from: gRPC, or a ring in shared memory."""
