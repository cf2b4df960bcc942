"""Detect the format of files that a user names, and read them with Spark."""
