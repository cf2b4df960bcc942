"""Streams of batches from their first message to their last, and all open streams of a server."""
