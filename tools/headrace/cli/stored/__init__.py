"""Compute orders, labels and packed rows from stored datasets."""
