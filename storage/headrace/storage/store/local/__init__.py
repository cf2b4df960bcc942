"""Folders of this machine, with locks and fences."""
