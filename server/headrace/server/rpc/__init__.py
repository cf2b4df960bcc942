"""The gRPC service: where requests become calls and errors become statuses."""
