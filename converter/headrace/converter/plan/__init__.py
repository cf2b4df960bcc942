"""Decide before a conversion starts how every column is stored and what each task does."""
