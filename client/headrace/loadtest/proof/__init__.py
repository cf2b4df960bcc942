"""Compare what ranks received with what they should have, and resume from their tokens."""
