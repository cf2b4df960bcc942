"""Decoded blocks in memory, shared by all streams: fetched once, leased, evicted by need.

`memory` places blocks, `fetch` brings them, and `disk` keeps stored blocks over restarts.
"""
