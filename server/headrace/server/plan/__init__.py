"""Plan what a stream sends: check requests, apply the order and slices, and prefetch blocks."""
