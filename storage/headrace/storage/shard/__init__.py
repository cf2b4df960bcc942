"""The codecs of one shard: blocks, the block table, checksums, types.

`shard_writer` streams them into a store.
"""
