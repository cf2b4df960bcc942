"""A server of several processes: a supervisor with the cache, workers that serve from it."""
