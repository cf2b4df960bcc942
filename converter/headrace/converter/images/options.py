"""How a folder of images is to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from headrace.errors import BadArgumentError

Label: TypeAlias = Literal["first", "last", "none"]
OnError: TypeAlias = Literal["refuse", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """How a folder of images is read; what its names leave open is not guessed.

    Attributes:
        label: Which folder is the class of an image: the ``first`` below the source or its split,
            the ``last`` one, or ``none``; `None` refuses folders that leave it open.
        on_error: ``refuse`` names files that are not whole images and writes nothing; ``skip``
            leaves them out, counted and listed.
    """

    label: Label | None = None
    on_error: OnError = "refuse"

    def __post_init__(self) -> None:
        if self.label is not None and self.label not in get_args(Label):
            raise BadArgumentError(
                f"label is {self.label!r}, expected first, last or none", field="label"
            )
        if self.on_error not in get_args(OnError):
            raise BadArgumentError(
                f"on_error is {self.on_error!r}, expected refuse or skip", field="on_error"
            )
