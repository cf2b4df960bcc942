"""Make the bytes of batches: gather columns, lay out payloads, frame messages."""
