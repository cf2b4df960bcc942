"""The stages of the order that a server has, and which of them a request asks for.

A folder of `headrace.server.order_stages` is a plug, and has a class `Plug`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from graphlib import TopologicalSorter
from typing import ClassVar, NamedTuple, Protocol

from google.protobuf.message import Message

from headrace.server.access.callers import Caller
from headrace.server.datasets.catalog import Finding, Request
from headrace.server.datasets.member import Member
from headrace.server.datasets.served import Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.plan.stream_request import BatchesRequest, Words
from headrace.server.settings.plug_settings import folders_of
from headrace.server.telemetry.metrics import Metrics

_FOLDERS = "headrace.server.order_stages"


class AskedOrder(NamedTuple):
    """What a plug may depend on.

    Attributes:
        request: The request.
        options: Those of its stages whose options have the type of the plug.
    """

    request: BatchesRequest
    options: Sequence[Message]


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
        fields: The fields of requests that are its own.
        options: The type of its options in a request's stages; None if it has fields of its own.
        words: How the refusal of a token names the stage; None if it compares its part of a token
            with a request itself.
        limits: The greatest length of each list in its options, by its message and field.
        metrics: Where the folder adds its own.
        turns: The turns of callers.
    """

    name: ClassVar[str]
    after: ClassVar[Sequence[str]] = ()
    fields: ClassVar[Sequence[str]] = ()
    options: ClassVar[type[Message] | None] = None
    words: ClassVar[Words | None] = Words(
        "samples after the stage", "samples without it", "ask for the token's stages", "stages"
    )
    limits: ClassVar[Mapping[str, int]] = {}

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        self.metrics, self.turns = metrics, turns

    def close(self) -> None:
        """Free what the stage uses; all calls have ended."""

    def reading(self, served: Served, asked: AskedOrder) -> Served:
        """Return what a request reads, behind the stage if the request or its token asks for it.

        It is called if the request has a field or options of its, or the token a part.

        Args:
            served: What it reads without the stage.
            asked: What it asks for.

        Raises:
            BadArgumentError: The stage is not possible.
            TokenSpecChangedError: The token is for another one.
        """
        del asked
        return served

    def opened(self, request: Request, finding: Finding) -> Served | None:
        """Return what a request reads in place of the dataset that it names; None for that.

        It is called if the request has a field of its.

        Raises:
            HeadraceError: It cannot be opened.
        """
        del request, finding
        return None

    def filtered(self, member: Member, where: str, asker: Asker) -> ServedDataset | None:
        """Return the part of a dataset that an expression keeps; None if this stage knows none.

        It is called without a turn, because it may wait.

        Raises:
            HeadraceError: It cannot be applied, or not yet.
        """
        del member, where, asker
        return None

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
