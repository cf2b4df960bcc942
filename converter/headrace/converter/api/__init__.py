"""The public functions: conversions of DataFrames and files, and their results."""
