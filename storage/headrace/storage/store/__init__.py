"""Stores of objects: local folders, S3, and everything that fsspec opens."""
