"""Run a server as several processes: a supervisor with the cache, and workers that serve."""
