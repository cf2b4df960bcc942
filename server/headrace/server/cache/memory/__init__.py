"""The memory of the cache: an arena, a table of blocks, and eviction."""
