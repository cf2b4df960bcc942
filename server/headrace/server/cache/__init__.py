"""Decoded blocks in memory, shared by all streams: fetched once, leased, evicted by need.

`memory` holds the blocks, `fetch` reads them, and `disk` keeps stored blocks across restarts.
"""
