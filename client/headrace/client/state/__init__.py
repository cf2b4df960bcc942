"""What a checkpoint holds, and what must hold when it is loaded."""
