"""Make the bytes of batches: gathered columns, payloads, message frames, and where they go."""
