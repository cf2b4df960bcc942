"""Stages of the order: each folder is a plug, which no room imports."""
