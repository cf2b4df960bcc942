"""Run server processes from start to end: signals, reloading, private servers and their leases."""
