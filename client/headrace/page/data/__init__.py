"""Datasets as they are shown: opened once, samples by id, values as pictures, text and numbers."""
