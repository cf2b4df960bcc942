"""What users call: conversions of DataFrames and files, and what is done with their results."""
