"""Read CSV, JSON and lines of text exactly, or refuse them by file and line; no Spark, no Java."""

from headrace.converter.text.almost_typed import StaysText
from headrace.converter.text.options import TextOptions
from headrace.converter.text.pieces import TextPieces
from headrace.converter.text.refused import LeftOut, Refusal
from headrace.converter.text.survey import text_pieces

__all__ = ["LeftOut", "Refusal", "StaysText", "TextOptions", "TextPieces", "text_pieces"]
