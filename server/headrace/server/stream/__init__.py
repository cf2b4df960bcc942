"""One stream of batches, from its first message to its last, and the open streams of a server."""
