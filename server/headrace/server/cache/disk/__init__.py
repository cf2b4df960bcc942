"""Stored blocks in a folder of this machine, kept over restarts."""
