"""Petastorm's `TransformSpec`: a function of pandas frames, and what it makes of the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, NDArray[Any]]
Edit = tuple[str, Any, tuple[int, ...], bool]
"""Name, dtype, shape of one value, and whether it may be null."""


def edit_field(
    name: str,
    numpy_dtype: Any,
    shape: tuple[int, ...],
    nullable: bool = False,  # noqa: FBT001, FBT002 - theirs
) -> Edit:
    """Return what a function makes of a column, for ``edit_fields``."""
    return name, numpy_dtype, shape, nullable


class TransformSpec:
    """What happens to the samples of each batch before the loop gets them.

    Attributes:
        func: Takes a frame with a row for each sample of a batch and returns one; None to choose
            columns only.
        edit_fields: Columns whose types the function changes.
        removed_fields: Columns to leave out.
        selected_fields: Columns to keep, in this order; None for all.
    """

    def __init__(
        self,
        func: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
        edit_fields: Iterable[Edit] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        """Describe the transformation; the attributes say what the arguments mean.

        Raises:
            ValueError: Fields are both removed and selected.
        """
        if removed_fields is not None and selected_fields is not None:
            raise ValueError("removed_fields and selected_fields are given; expected one of them")
        self.func = func
        self.edit_fields = list(edit_fields or ())
        self.removed_fields = list(removed_fields or ())
        self.selected_fields = None if selected_fields is None else list(selected_fields)

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the columns of a batch after the transformation.

        Args:
            arrays: ``(samples, *shape)`` each.

        Raises:
            ValueError: The function returns other columns, or other shapes, than the fields say.
            TypeError: It returns no frame.
        """
        if self.func is not None:
            arrays = self._called(self.func, arrays)
        kept = self.selected_fields
        if kept is None:
            kept = [name for name in arrays if name not in self.removed_fields]
        missing = [name for name in kept if name not in arrays]
        if missing:
            raise ValueError(
                f"selected_fields has {missing[0]!r}, which is no column of the batch; "
                f"expected some of {sorted(arrays)}"
            )
        return {name: arrays[name] for name in kept}

    def _called(self, func: Callable[[pd.DataFrame], pd.DataFrame], arrays: Arrays) -> Arrays:
        import pandas as pd  # noqa: PLC0415 - needed here alone

        rows = {name: list(value) if value.ndim > 1 else value for name, value in arrays.items()}
        frame = func(pd.DataFrame(rows))
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(
                f"the function of transform_spec returned {type(frame).__name__}; "
                "expected a pandas.DataFrame"
            )
        edits = {name: (dtype, shape) for name, dtype, shape, _ in self.edit_fields}
        absent = sorted(set(edits) - set(frame) - set(self.removed_fields))
        if absent:
            raise ValueError(
                f"edit_fields has {absent[0]!r}, which the function of transform_spec does not "
                f"return; expected some of {sorted(frame)}"
            )
        return {
            str(name): _column(str(name), frame[name].to_numpy(), edits.get(name)) for name in frame
        }


def _column(
    name: str, values: NDArray[Any], edit: tuple[Any, tuple[int, ...]] | None
) -> NDArray[Any]:
    dtype, shape = edit or (None, ())
    is_text = dtype is not None and np.dtype(dtype).kind in "SUO"
    if values.dtype != object or is_text:
        return values if dtype is None or is_text else values.astype(dtype)
    if edit is None and not all(isinstance(value, np.ndarray) for value in values):
        return values
    try:
        whole = np.stack([np.asarray(value, dtype) for value in values])
        return whole.reshape(len(values), *shape) if shape else whole
    except ValueError as error:
        if edit is None:
            return values  # of different lengths
        raise ValueError(
            f"column {name!r} is not {shape} of {np.dtype(dtype)} in each row, as edit_fields says "
            f"of what transform_spec's function returns: {error}"
        ) from error
