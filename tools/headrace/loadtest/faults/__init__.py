"""Cause faults in servers and their network while a swarm runs."""
