"""Decoded blocks in memory, shared by all streams: fetched once, leased, evicted by need.

`memory` says where blocks lie, `fetch` how they come, and `disk` keeps stored ones over restarts.
"""
