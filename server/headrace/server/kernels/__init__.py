"""Loops over batches and blocks, written in C.

Each has an equivalent in NumPy, which is used if there was no C compiler at installation.
"""
