"""A batch as the training loop sees it, and its columns."""
