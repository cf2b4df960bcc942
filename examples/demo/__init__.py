"""The demo of headrace: two real data sets, one S3 server, and trainers that are killed."""
