"""Show orders and runs: the samples at each position, and the position of a token."""
