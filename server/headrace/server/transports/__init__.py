"""Transports besides gRPC: each folder is a plug, which no room imports."""
