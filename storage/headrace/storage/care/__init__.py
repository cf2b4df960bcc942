"""Keep datasets whole: verify and repair them, and remove what no version needs."""
