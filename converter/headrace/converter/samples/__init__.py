"""What becomes of each sample on its way: a user's function, and the split it goes to."""
