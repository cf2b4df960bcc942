"""The memory of the cache: one arena, a table of blocks, leases, and eviction."""
