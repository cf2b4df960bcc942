"""Parse the values of options that name columns, splits, hashes and shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from headrace.converter import Shape


def parse_columns(text: str | None) -> dict[str, str] | None:
    """Parse ``a,b=c`` to new names by old names; None for None."""
    if not text:
        return None
    pairs = (part.strip().partition("=") for part in text.split(","))
    return {old: new or old for old, _, new in pairs}


def parse_splits(text: str | None, column: str | None) -> dict[str, float] | str | None:
    """Parse ``train=0.9,val=0.1`` to fractions by name, or return the column that names splits.

    Raises:
        BadArgumentError: Both are given, or a part is not ``NAME=FRACTION``.
    """
    if text is None or column is not None:
        if text is not None:
            raise BadArgumentError("--split and --split-by exclude each other", field="split")
        return column
    fractions: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        try:
            fractions[name] = float(number)
        except ValueError:
            raise BadArgumentError(
                f"--split has {part!r}, expected NAME=FRACTION, such as train=0.9,val=0.1",
                field="split",
            ) from None
    return fractions


def parse_hashes(text: str | None) -> list[str] | None:
    """Parse ``sha1,xxh64`` to names; none for ``none``, None for None."""
    if text is None:
        return None
    return [] if text == "none" else [name.strip() for name in text.split(",")]


def parse_shapes(pairs: Sequence[tuple[str, str]]) -> dict[str, Shape]:
    """Return the shapes of tensors by column, or ``ragged``.

    Raises:
        BadArgumentError: A value is neither a shape such as ``28x28`` nor ``ragged``.
    """
    shapes: dict[str, Shape] = {}
    for name, text in pairs:
        if text != "ragged" and not re.fullmatch(r"\d+(x\d+)*", text):
            raise BadArgumentError(
                f"--shape has {name}={text}, expected a shape such as 28x28, or ragged",
                field="shape",
            )
        shapes[name] = "ragged" if text == "ragged" else tuple(map(int, text.split("x")))
    return shapes
