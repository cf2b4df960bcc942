"""Convert columns from Spark and files to columns of shards: types, names, casts, vectors."""
