"""The parts of a sequence that context-parallel ranks get. Pure arithmetic."""

from __future__ import annotations

import enum


class SequenceLayout(enum.Enum):
    """How a sequence is divided into parts of equal length.

    Source: `_HeadTailLoadBalancer` and `_PerDocumentHeadTailLoadBalancer` of PyTorch 2.13 make the
    same parts as the last two.
    """

    CONTIGUOUS = "contiguous"
    """Part i of n is the i-th of n stretches."""
    ZIGZAG = "zigzag"
    """Part i of n is the stretches i and 2 n - 1 - i of 2 n, which cost causal attention as much as
    those of any other part."""
    DOCUMENTS = "documents"
    """Each document is rearranged as the parts of its zigzag; part i is the i-th of n stretches of
    the row that these make."""

    def unit(self, parts: int) -> int:
        """Return what the length of a sequence, or of a document, must be a multiple of."""
        return parts if self is SequenceLayout.CONTIGUOUS else 2 * parts

    def stretches(self, length: int, part: int, parts: int) -> list[tuple[int, int]]:
        """Return which stretches of a row a part is: of `DOCUMENTS` of the rearranged row.

        Args:
            length: Elements of the row, a multiple of the unit.
            part: In [0, `parts`).
            parts: Number of parts, >= 1.

        Returns:
            Stretches [start, stop) that do not touch each other, in the order of the part.
        """
        if self is not SequenceLayout.ZIGZAG:
            return [(part * length // parts, (part + 1) * length // parts)]
        step = length // (2 * parts)
        head, tail = part * step, (2 * parts - 1 - part) * step
        if head + step == tail:
            return [(head, tail + step)]
        return [(head, head + step), (tail, tail + step)]
