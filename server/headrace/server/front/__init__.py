"""Accept calls, identify callers, and give threads only calls that are ready."""
