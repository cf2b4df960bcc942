"""Where the runs of an epoch lie: spread evenly over it, in one large pass or many small ones."""
