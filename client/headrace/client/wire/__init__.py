"""From messages to columns: pure parsing and arithmetic, no I/O and no threads."""
