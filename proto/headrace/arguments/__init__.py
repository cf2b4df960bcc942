"""Checks of arguments that users give: their type and range, before anything is done with them.

Each returns the argument as the plain type that the rest of headrace works with, or raises
`headrace.errors.BadArgumentError`, which says what was found and what to pass.
"""

from headrace.arguments.checks import (
    flag,
    instance,
    instance_or_none,
    mapping_or_none,
    number,
    one_of,
    shown,
    text,
    texts,
    whole,
    whole_or_none,
)
from headrace.arguments.dataset_url import joined_sources, split_source, with_source

__all__ = [
    "flag",
    "instance",
    "instance_or_none",
    "joined_sources",
    "mapping_or_none",
    "number",
    "one_of",
    "shown",
    "split_source",
    "text",
    "texts",
    "whole",
    "whole_or_none",
    "with_source",
]
