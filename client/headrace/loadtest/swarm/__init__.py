"""Run a swarm of trainers: processes with many ranks, which record what they read."""
