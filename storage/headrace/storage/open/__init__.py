"""Open datasets of any layout with one function."""
