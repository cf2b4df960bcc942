"""A stage: what a server does with each batch before it sends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Protocol, Self

from google.protobuf.message import Message

from headrace.arguments import shown, whole
from headrace.errors import BadArgumentError
from headrace.order import Token

COLUMN = "the name of a column"
"""What is wanted of the names of columns, in errors."""

LENGTH_LIMIT = 1 << 31


class RankPlace(Protocol):
    """Where a rank is among those of its job."""

    def part(self, *axes: str) -> tuple[int, int]:
        """Return the index of the rank on some axes together, and their number of ranks."""


class Stage(ABC):
    """What a server does with each batch: a frozen dataclass of its options.

    A server that has a stage of the message's type runs it, wherever the class is from.
    """

    __slots__ = ()

    @abstractmethod
    def to_message(self) -> Message:
        """Write the options down for the wire; the type of the message names the stage."""

    def title(self) -> str:
        """Return its entry in resume tokens, ``name@version``; empty for none.

        Raises:
            BadArgumentError: Only the server knows it.
        """
        return ""

    def shared_title(self, stages: Sequence[Stage]) -> str:
        """Return the entry that it shares with others of a request's stages; empty for none."""
        del stages
        return ""

    def of_rank(self, place: RankPlace | None) -> Stage:
        """Return the stage as one rank asks for it.

        Args:
            place: Where the rank is; None if all have samples of their own.

        Raises:
            BadArgumentError: It cannot be asked for there.
        """
        del place
        return self

    def for_all(self, ranks: Sequence[RankPlace]) -> Stage | None:
        """Return the stage of a rank from which others can take theirs; None if they cannot.

        Args:
            ranks: All of them.
        """
        del ranks
        return self

    @property
    def left_out(self) -> Sequence[str]:
        """The columns that the stage of a rank leaves out, and those of others may not."""
        return ()

    @property
    def may_replace(self) -> bool:
        """Whether other samples may take the place of damaged ones."""
        return False


class OrderStage(ABC):
    """What a server does with the order of samples: a frozen dataclass of its options, too.

    Attributes:
        stage_name: Its name in resume tokens; empty if they do not name it.
    """

    __slots__ = ()
    stage_name: ClassVar[str] = ""

    @abstractmethod
    def to_message(self) -> Message:
        """Write the options down for the wire; the type of the message names the stage."""

    @property
    def is_asked(self) -> bool:
        """Whether requests ask for it; if not, it may still be adopted from a token."""
        return True

    def text(self) -> str:
        """Return what tokens say about it before the first batch; empty for nothing."""
        return ""

    def adopted(self, token: Token) -> Self:
        """Return the stage with which a run continues from a token.

        Raises:
            TokenSpecChangedError: The token is for another one.
        """
        del token
        return self

    def check(self, *, is_mixture: bool) -> None:
        """Refuse what it cannot be used for.

        Raises:
            BadArgumentError: It cannot.
        """
        del is_mixture


class StagePart:
    """What belongs into a stage and could be taken for one.

    Attributes:
        whole: How to pass it, with a place for its name.
    """

    __slots__ = ()
    whole: ClassVar[str]


def stages_of(stages: object) -> tuple[Stage, ...]:
    """Return the stages that an argument means, in order.

    Raises:
        BadArgumentError: The argument is a single stage, or an element is not a stage.
    """
    wanted = "a list of stages, such as [Cast('label', 'int64')]"
    if isinstance(stages, Stage | str | Mapping | AbstractSet) or not isinstance(stages, Iterable):
        raise BadArgumentError(
            f"stages is {shown(stages)}, of type {type(stages).__name__}; expected {wanted}",
            field="stages",
        )
    found = tuple(stages)
    for at, stage in enumerate(found):
        if not isinstance(stage, Stage):
            raise BadArgumentError(
                f"stages[{at}] is {shown(stage)}, of type {type(stage).__name__}; expected {wanted}"
                + _advice(stage),
                field="stages",
            )
    return found


def _advice(stage: object) -> str:
    kind = stage if isinstance(stage, type) else type(stage)
    if issubclass(kind, StagePart):
        return f". Pass it as {kind.whole.format(kind.__name__)}"
    if isinstance(stage, type):
        return f". Pass an object, {kind.__name__}(…), not the class"
    return ". Pass a function as transform= instead" if callable(stage) else ""


def set_whole(stage: Stage, name: str) -> None:
    """Check that a field of a stage is a whole number >= 1."""
    field = f"{type(stage).__name__}.{name}"
    object.__setattr__(stage, name, whole(field, getattr(stage, name), low=1, high=LENGTH_LIMIT))


def token_text(stages: Sequence[Stage]) -> str:
    """Return what tokens contain about stages.

    Raises:
        BadArgumentError: Only the server knows it.
    """
    titles = [stage.title() for stage in stages]
    shared = [stage.shared_title(stages) for stage in stages]
    return ",".join(filter(None, [*titles, *dict.fromkeys(shared)]))
