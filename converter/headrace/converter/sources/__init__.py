"""Divide datasets of other layouts into numbered pieces, which tasks read with Arrow."""
