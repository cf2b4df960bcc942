"""Stored blocks in a local folder, kept across restarts."""
