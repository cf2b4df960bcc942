"""Recognise the training framework that runs a loop, and tell it what it asks of a loader."""
