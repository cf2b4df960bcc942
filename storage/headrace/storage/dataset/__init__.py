"""Versions of datasets: their manifests and block tables, and the commit that makes them exist."""
