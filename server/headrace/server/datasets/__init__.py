"""The datasets of a server: opened once, versions, mixtures, and the catalog of names."""
