"""Views of columns that are not plain tensors.

Items are decoded on access.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.arguments import whole
from headrace.client.wire.payload_layout import ColumnView

_T = TypeVar("_T")
_Text = TypeVar("_Text", bytes, str)

_VIEWS = frozenset({"_values", "_offsets", "_valid"})

_RUN = 256
"""Items decoded at once for a loop over a column: one copy of all their bytes costs less than one
for each, and a loop that is left early has decoded few in vain."""


class _Source(Protocol):
    """Makes the views of columns on demand."""

    def view_of(self, column: str) -> ColumnView: ...


# Not a collections.abc.Sequence: DataLoader rebuilds sequences item by item, which would decode
# every string of every batch.
class _Lazy(ABC, Generic[_T]):
    """A read-only sequence over the flat values and offsets of a column."""

    _values: NDArray[np.generic]
    _offsets: NDArray[np.int64]
    _valid: NDArray[np.bool_] | None
    _source: _Source | None = None
    _name: str
    _ADVICE = "it is a sequence of samples, not a tensor"

    def __init__(self, view: ColumnView) -> None:
        assert view.offsets is not None
        self._row_count = view.offsets.size - 1
        self._take(view)

    @classmethod
    def later(cls, source: _Source, name: str, row_count: int) -> Self:
        """Return a column whose views are made on demand.

        Args:
            source: Makes the views; kept alive by the column.
            name: The column's name in the source.
            row_count: Number of rows.
        """
        column = cls.__new__(cls)
        # An initialiser for both cases would take twice as long.
        column.__dict__.update(_source=source, _name=name, _row_count=row_count)
        return column

    def _take(self, view: ColumnView) -> None:
        assert view.offsets is not None
        self._values, self._offsets, self._valid = view.values, view.offsets, view.valid

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Called only for missing attributes: the views before their first use.
            if name not in _VIEWS or self._source is None:
                raise AttributeError(
                    f"{type(self).__name__!r} has no attribute {name!r}: {self._ADVICE}"
                )
            self._take(self._source.view_of(self._name))
            return self.__dict__[name]

    def __getstate__(self) -> dict[str, object]:
        # Pickles and copies contain the views.
        self._values  # noqa: B018 - makes them
        return {k: v for k, v in self.__dict__.items() if k not in ("_source", "_name")}

    @property
    def values(self) -> torch.Tensor:
        """The samples' values back to back, ``(total,)``; shares the batch's memory."""
        return torch.from_numpy(self._values)

    @property
    def offsets(self) -> torch.Tensor:
        """Sample i is ``values[offsets[i]:offsets[i + 1]]``; ``(samples + 1,) int64``."""
        return torch.from_numpy(self._offsets)

    def __len__(self) -> int:
        return self._row_count

    @overload
    def __getitem__(self, index: int) -> _T | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T | None]: ...
    def __getitem__(self, index: int | slice) -> _T | list[_T | None] | None:
        if isinstance(index, slice):
            start, end, step = index.indices(len(self))
            if step == 1:
                return self._run(start, max(start, end))
            return [self._at(i) for i in range(start, end, step)]
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"sample {index} of a batch of {size}")
        return self._at(index % size)

    def __iter__(self) -> Iterator[_T | None]:
        size = len(self)
        runs = (self._run(start, min(start + _RUN, size)) for start in range(0, size, _RUN))
        return chain.from_iterable(runs)

    def __repr__(self) -> str:
        shown = ", ".join(repr(item) for item in self[:3])
        more = ", …" if len(self) > 3 else ""  # noqa: PLR2004 - as many as fit on a line
        return f"{type(self).__name__}([{shown}{more}], len={len(self)})"

    def _at(self, index: int) -> _T | None:
        if self._valid is not None and not self._valid[index]:
            return None
        return self._decode(self._offsets[index : index + 2].tolist())[0]

    def _run(self, start: int, end: int) -> list[_T | None]:
        items: list[_T | None] = [*self._decode(self._offsets[start : end + 1].tolist())]
        if self._valid is not None:
            for index in np.flatnonzero(~self._valid[start:end]).tolist():
                items[index] = None
        return items

    @abstractmethod
    def _decode(self, edges: list[int]) -> list[_T]:
        """Decode the items between adjacent edges, which are offsets into the values."""


class BytesColumn(_Lazy[bytes]):
    """Byte strings, or None where null."""

    _ADVICE = (
        "it is a sequence of bytes, not a tensor; the server decodes JPEG and PNG with "
        "stages=[DecodeImage(column, height, width)]"
    )

    def _decode(self, edges: list[int]) -> list[bytes]:
        return _cut(self._values[edges[0] : edges[-1]].tobytes(), edges)


class StringColumn(_Lazy[str]):
    """Strings, or None where null."""

    _ADVICE = "it is a sequence of str, not a tensor; make a tensor in transform=, or store numbers"

    def _decode(self, edges: list[int]) -> list[str]:
        whole = self._values[edges[0] : edges[-1]].tobytes()
        if whole.isascii():
            # In ASCII, offsets of bytes are offsets of characters.
            return _cut(whole.decode("ascii"), edges)
        return [item.decode() for item in _cut(whole, edges)]


class RaggedColumn(_Lazy[torch.Tensor]):
    """One-dimensional tensors of differing length that share the batch's memory, or None."""

    _ADVICE = (
        "its samples differ in length, so it is not a tensor; make one with to_padded() or "
        "to_nested()"
    )

    _moved: tuple[torch.Tensor, torch.Tensor] | None = None

    def __init__(
        self, view: ColumnView, *, moved: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> None:
        """Wrap a column.

        Args:
            view: The column on the CPU; its values are not used if ``moved`` is given.
            moved: Values and offsets on a device, if they were moved there.
        """
        super().__init__(view)
        self._moved = moved

    @property
    def values(self) -> torch.Tensor:
        return super().values if self._moved is None else self._moved[0]

    @property
    def offsets(self) -> torch.Tensor:
        return super().offsets if self._moved is None else self._moved[1]

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> RaggedColumn:
        """Return the column with values and offsets on a device; null rows stay null."""
        moved = copy(self)
        values, offsets = (
            part.to(device, non_blocking=non_blocking) for part in (self.values, self.offsets)
        )
        moved.__dict__["_moved"] = values, offsets
        return moved

    def to_nested(self) -> torch.Tensor:
        """Return a jagged nested tensor that shares the memory; empty where null."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def to_padded(
        self, *, fill: float = 0, length: int | None = None, multiple_of: int = 1
    ) -> torch.Tensor:
        """Return ``(samples, length)``, with short and null rows filled and long rows cut.

        Args:
            fill: The value to fill with.
            length: The length of each row, >= 0; None for the longest row's.
            multiple_of: Round the length up to a multiple of this, >= 1, so that few shapes occur.

        Raises:
            BadArgumentError: `multiple_of` is not a whole number, or below 1.
        """
        step = whole("multiple_of", multiple_of, low=1, high=1 << 31)
        offsets, values = self.offsets, self.values
        lengths = offsets.diff()
        width = int(lengths.max()) if length is None and len(self) else length or 0
        width += -width % step
        places = torch.arange(width, device=values.device)
        is_there = places < lengths[:, None]
        padded = values.new_full((len(self), width), fill)
        padded[is_there] = values[(offsets[:-1, None] + places)[is_there]]
        return padded

    def _decode(self, edges: list[int]) -> list[torch.Tensor]:
        values = self.values
        return [values[start:end] for start, end in pairwise(edges)]


def _cut(whole: _Text, edges: list[int]) -> list[_Text]:
    """Split the values from the first edge to the last at all edges in between."""
    first = edges[0]
    return [whole[start - first : end - first] for start, end in pairwise(edges)]
