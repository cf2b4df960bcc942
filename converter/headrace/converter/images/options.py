"""Options for reading a folder of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from headrace.errors import BadArgumentError

Label: TypeAlias = Literal["first", "last", "none"]
OnError: TypeAlias = Literal["refuse", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """Options for reading a folder of images; ambiguous names are not guessed.

    Attributes:
        label: The folder that is the class of an image: the ``first`` below the source or its
            split, the ``last`` one, or ``none``; `None` refuses ambiguous folders.
        on_error: ``refuse`` names files that are not complete images and writes nothing; ``skip``
            leaves them out, counts and lists them.
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
