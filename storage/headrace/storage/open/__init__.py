"""The one way to open a dataset of any layout."""
