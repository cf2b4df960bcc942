"""Places that hold bytes: local folders, S3, and whatever fsspec opens."""
