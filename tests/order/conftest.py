"""Hypothesis for the order: no deadlines, as a busy machine would break them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("order", deadline=None)
settings.load_profile("order")
