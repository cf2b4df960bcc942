"""Name a DataFrame by all that determines its rows, so that its conversion can be found again."""

from headrace.converter.keys.conversion import ConversionKey, conversion_key, refuse_changed_files

__all__ = ["ConversionKey", "conversion_key", "refuse_changed_files"]
