"""Read one stream over failures: retries, prefetching, hedged batches."""
