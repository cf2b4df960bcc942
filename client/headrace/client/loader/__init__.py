"""A dataset inside DataLoader workers: who reads what, and how far the loop has got."""
