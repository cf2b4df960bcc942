"""Volumes of Unity Catalog, from machines that do not mount them."""
