"""Compute orders, the positions of tokens, and the differences between runs."""
