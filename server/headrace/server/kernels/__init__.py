"""Loops over batches and blocks, written in C.

Each has a twin in NumPy elsewhere, which serves where no C compiler was there at installation.
"""
