"""Compare what ranks saw with what they must have seen, and resume from their tokens."""
