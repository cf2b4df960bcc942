"""The interface between readers of datasets and the layouts that datasets are stored in."""
