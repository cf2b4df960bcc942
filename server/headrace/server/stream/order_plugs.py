"""The stages of the order that a server has, and which of them a request asks for.

A folder of `headrace.server.order_stages` is a plug, and has a class `Plug`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from graphlib import TopologicalSorter
from typing import Any, ClassVar, NamedTuple, Protocol

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from headrace.server.access.callers import Caller
from headrace.server.datasets.catalog import Catalog
from headrace.server.datasets.member import Member
from headrace.server.datasets.served import Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.plan.stream_request import ReadRequest, Words
from headrace.server.settings.plug_settings import folders_of
from headrace.server.telemetry.metrics import Metrics

_FOLDERS = "headrace.server.order_stages"


class Finding(NamedTuple):
    """How the datasets of a request are found.

    Attributes:
        catalog: The datasets that the caller may read.
        narrow: Returns what stages leave of a dataset; see `OrderPlug.narrowed`.
        options: Returns the options of stages of the order, by type.
    """

    catalog: Catalog
    narrow: Callable[[Member, Sequence[AnyMessage]], Member]
    options: Callable[[Sequence[AnyMessage]], Mapping[type[Message], Any]]


class Turns(Protocol):
    """The turns of callers; each is held while something works."""

    def setup_turn(self, caller: str) -> AbstractContextManager[object]:
        """Wait for a turn to find and check what a caller asks for."""

    def question_turn(self, caller: str) -> AbstractContextManager[object]:
        """Wait for a turn to work longer for a caller."""


class NoTurns:
    """Turns of a server that one caller has to itself."""

    def setup_turn(self, caller: str) -> AbstractContextManager[object]:
        """Return at once."""
        del caller
        return nullcontext()

    question_turn = setup_turn


class Asker(NamedTuple):
    """Who asks, and how long an answer may take.

    Attributes:
        caller: The caller.
        wait_s: The most seconds to wait.
    """

    caller: Caller
    wait_s: float


class OrderPlug:
    """The stage of the order of one folder, on one server.

    Args:
        metrics: Where the folder adds its own.
        turns: The turns of callers.

    Attributes:
        name: The name of the stage in tokens; unique.
        after: The names of stages that come before it, if a request has both.
        options: The type of its options in a request's stages; None if no request asks for it.
        narrows: Whether it chooses from the samples of a dataset, before they are mixed.
        words: How the refusal of a token names the stage; None if it compares its part of a token
            with a request itself.
        limits: The greatest length of each list in its options, by its message and field.
        metrics: Where the folder adds its own.
        turns: The turns of callers.
    """

    name: ClassVar[str]
    after: ClassVar[Sequence[str]] = ()
    options: ClassVar[type[Message] | None] = None
    narrows: ClassVar[bool] = False
    words: ClassVar[Words | None] = Words(
        "samples after the stage", "samples without it", "ask for the token's stages", "stages"
    )
    limits: ClassVar[Mapping[str, int]] = {}

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        self.metrics, self.turns = metrics, turns

    def close(self) -> None:
        """Free what the stage uses; all calls have ended."""

    def reading(self, served: Served, request: ReadRequest) -> Served:
        """Return what a request reads, behind the stage if the request or its token asks for it.

        It is called if the request has options of its, or the token a part.

        Args:
            served: What it reads without the stage.
            request: The request, for batches.

        Raises:
            BadArgumentError: The stage is not possible.
            TokenSpecChangedError: The token is for another one.
        """
        del request
        return served

    def opened(self, request: ReadRequest, finding: Finding) -> Served | None:
        """Return what a request reads in place of the dataset that it names; None for that.

        It is called if the request has options of its.

        Raises:
            HeadraceError: It cannot be opened.
        """
        del request, finding
        return None

    def narrowed(self, member: Member, options: Any, asker: Asker) -> Member:
        """Return what the stage leaves of a dataset; called if it narrows.

        It is called without a turn, because it may wait.

        Raises:
            HeadraceError: It cannot be applied, or not yet.
        """
        del options, asker
        return member

    def derived(self, dataset: ServedDataset, suffix: str) -> Member | None:
        """Return what ``NAME:SUFFIX`` names; None if that is nothing of this stage.

        Raises:
            HeadraceError: It cannot be opened.
        """
        del dataset, suffix
        return None


def open_order_stages(metrics: Metrics, turns: Turns) -> list[OrderPlug]:
    """Open all installed stages of the order; return them as samples pass them."""
    plugs = {folder.Plug.name: folder.Plug(metrics, turns) for folder in folders_of(_FOLDERS)}
    order = TopologicalSorter({name: plug.after for name, plug in plugs.items()}).static_order()
    return [plugs[name] for name in order if name in plugs]
