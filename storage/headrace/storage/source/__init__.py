"""The seam between those who read datasets and the layouts that datasets are stored in."""
