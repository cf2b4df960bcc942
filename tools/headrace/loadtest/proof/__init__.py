"""Compare what the ranks received with the plan, and resume from their tokens."""
