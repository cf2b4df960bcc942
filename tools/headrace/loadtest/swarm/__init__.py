"""Run a swarm of simulated trainers, and record what they read."""
