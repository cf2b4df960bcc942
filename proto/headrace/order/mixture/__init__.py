"""The order of a mixture: several datasets drawn by weight, and all that describes them."""
