"""S3 and services compatible with it, over connections of our own."""
