"""Decide who is let in, and limit requests: hosts, headers, sessions, deadlines, sizes."""
