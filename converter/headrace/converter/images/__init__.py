"""Convert folders of images: list them, find their classes and splits, and read them."""

from headrace.converter.images.layout import FilesLeftOut, FolderPlan, plan_folder
from headrace.converter.images.listing import list_files
from headrace.converter.images.options import ImageOptions
from headrace.converter.images.pieces import ImagePieces, SkippedFiles, image_pieces

__all__ = [
    "FilesLeftOut",
    "FolderPlan",
    "ImageOptions",
    "ImagePieces",
    "SkippedFiles",
    "image_pieces",
    "list_files",
    "plan_folder",
]
