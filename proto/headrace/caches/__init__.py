"""Caches in memory of what takes long to make."""

from headrace.caches.lru_cache import BoundedCache, LruCache

__all__ = ["BoundedCache", "LruCache"]
