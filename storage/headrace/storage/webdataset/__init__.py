"""WebDataset: directories of tar files whose members, grouped by name, are samples."""

from headrace.storage.webdataset._dataset import WebDataset
from headrace.storage.webdataset._source import MARK, detect, open_at

__all__ = ["MARK", "WebDataset", "detect", "open_at"]
