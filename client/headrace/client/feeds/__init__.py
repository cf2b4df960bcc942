"""Where a stream's batches come from: gRPC, or a transport that is installed."""
