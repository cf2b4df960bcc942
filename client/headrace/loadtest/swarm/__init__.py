"""A swarm of trainers: processes full of ranks, which keep records of what they read."""
