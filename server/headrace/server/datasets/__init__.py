"""Serve datasets: open them once, in versions and mixtures, and find them by name."""
