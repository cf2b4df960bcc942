"""Some of the samples of one dataset."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.arguments import flag, text
from headrace.client.options.arguments import where_of
from headrace.client.options.skips import SkipArgument, skip_choice


@dataclass(frozen=True, slots=True)
class Selection:
    """Read only some of the samples of a dataset; `MixtureEntry` is the same for a mixture's.

    Attributes:
        name: The dataset's name on the server; its URL for a private server.
        where: An expression that says which samples to read, such as
            ``"label < 10 and lang = 'en'"``: an epoch has only these (docs/selection.md). None for
            all, or for the expression of a loaded state.
        skips: Samples to leave out: at most 65,536 ids, or the digest of a list on the server.
            Other samples take their positions. None for the token's list.
        allow_new_skips: Whether a loaded state may have a shorter list, all of which is in
            ``skips``.

    Raises:
        BadArgumentError: A value has the wrong type, or is not allowed.
    """

    name: str
    where: str | None = None
    skips: SkipArgument = None
    allow_new_skips: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Selection.name", self.name, wanted="the name of a dataset, or its URL")
        where_of(self.where, field="Selection.where")
        skip_choice(self.skips)
        flag("Selection.allow_new_skips", self.allow_new_skips)
