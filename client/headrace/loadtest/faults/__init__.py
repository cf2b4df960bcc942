"""What is done to servers and their network while a swarm runs."""
