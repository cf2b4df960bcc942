"""Read one stream through failures: retries, prefetching, hedged batches."""
