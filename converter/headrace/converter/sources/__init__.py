"""Datasets of other layouts as numbered pieces, which tasks read in Arrow."""
