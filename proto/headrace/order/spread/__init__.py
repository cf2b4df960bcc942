"""Spread the runs of an epoch evenly over it, in one large pass or many small ones."""
