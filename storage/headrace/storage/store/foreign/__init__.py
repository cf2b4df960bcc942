"""Everything that fsspec opens, with its errors in our words."""
