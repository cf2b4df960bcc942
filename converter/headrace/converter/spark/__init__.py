"""Spark jobs: the code on the executors, the rows of a DataFrame, and how a job ends."""
