"""Which positions of an epoch each rank reads at each step."""
