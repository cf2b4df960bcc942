"""One version of a dataset: its manifest, its pages, the commit that makes it exist."""
