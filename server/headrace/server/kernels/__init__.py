"""Compiled loops over batches and blocks. Only `loader` imports the others: importing compiles.

Each has a twin in NumPy elsewhere, which serves until the compiler is done.
"""
