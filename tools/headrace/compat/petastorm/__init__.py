"""Petastorm's interface over headrace: put ``headrace.compat.`` before ``petastorm`` in imports.

The order of samples is headrace's, not theirs; docs/compat.md has the arguments one by one.
"""

from headrace.compat.petastorm.reader import Reader, make_batch_reader
from headrace.compat.petastorm.transform import TransformSpec

__all__ = ["Reader", "TransformSpec", "make_batch_reader"]
