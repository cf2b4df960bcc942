"""The kinds of stages that a server has, and what requests and tokens say about them.

A folder of `headrace.server.stages` is a plug: it has a subclass of `StagePlug` named ``Plug``.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import TRANSFORMS_LIMIT_BYTES
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.server.batch.stage import Stage
from headrace.server.datasets.member import Member
from headrace.server.datasets.order_stage import OrderStage
from headrace.server.datasets.served import Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.plan.list_limits import ListLimits
from headrace.server.plan.stream_request import ReadRequest, token_of
from headrace.server.settings.plug_settings import STAGES, PlugSettings, folders_of
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.get_batch_request import stream_request
from headrace.server.stream.order_plugs import (
    Asker,
    Finding,
    NoTurns,
    OrderPlug,
    Turns,
    open_order_stages,
)
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb

MAX_STAGES = 64
"""The most stages of a request."""

_Options = TypeVar("_Options", bound=Message)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a stage may depend on besides its options.

    Attributes:
        place: Its place among the stages of batches of the request.
        options: The options of all stages of the request.
        class_counts: The number of classes that the dataset names, by column.
    """

    place: int
    options: Sequence[Message]
    class_counts: Mapping[str, int]


@dataclass(frozen=True)
class StageKind(Generic[_Options]):
    """One kind of stage.

    Attributes:
        name: Its name in errors.
        options: The type of its options, by which requests name it.
        make: Makes a stage; raises BadArgumentError if the options are invalid.
        title: Returns the entry in tokens for what the results depend on, ``name@version``; empty
            for none.
        limits: The greatest length of each list in its options, by its message and field.
    """

    name: str
    options: type[_Options]
    make: Callable[[_Options, Facts], Stage]
    title: Callable[[_Options], str] = lambda _: ""
    limits: Mapping[str, int] = field(default_factory=dict)


class Asked(NamedTuple):
    """A stage of batches that a request asks for; its place is among those."""

    place: int
    kind: StageKind[Any]
    options: Message


class Mark(NamedTuple):
    """An entry in tokens that several stages share.

    Attributes:
        name: The name in the entry.
        title: The entry, ``name@version``; empty if the request has no such stages.
        check: Raises TokenSpecChangedError if a token's entry of this name, which may be empty, is
            for other results.
    """

    name: str
    title: str
    check: Callable[[str], None]


class StagePlug:
    """The stages of one folder, on one server.

    Args:
        config: The server's settings, which include those of the folder.
        metrics: Where the folder adds its own.

    Attributes:
        settings: The class of the folder's settings.
        kinds: The kinds of stages that requests may ask for.
        behind: The stage of the order that has a `first` stage of batches here; None for none.

    Raises:
        ConfigurationError: A setting cannot be used.
    """

    settings: ClassVar[type[PlugSettings]] = PlugSettings
    kinds: Sequence[StageKind[Any]] = ()
    behind: ClassVar[type[OrderStage] | None] = None

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        """Open what the stages use."""

    @classmethod
    def check(cls, config: ServerConfig) -> Iterator[str]:
        """Check the folder's settings, and yield what is good about them.

        Raises:
            ConfigurationError: A setting cannot be used.
        """
        del config
        yield from ()

    def close(self) -> None:
        """Free what the stages use; all streams have ended."""

    def mark(self, asked: Sequence[Asked]) -> Mark | None:
        """Return the entry in tokens that its stages share; None if they never share one.

        Raises:
            ConfigurationError: This server lacks what a stage needs.
        """
        del asked
        return None

    def first(
        self, served: Served, columns: tuple[WireColumn, ...]
    ) -> tuple[WireColumn, Stage] | None:
        """Return the stage that makes columns of what a dataset stores; None for none.

        It is called if the dataset is read through the stage of the order that is `behind`.

        Args:
            served: The dataset.
            columns: The columns to make.

        Returns:
            The column to gather, in which each row is a sample as it is stored; and the stage.

        Raises:
            ConfigurationError: This server lacks what the stage needs.
        """
        del served, columns
        return None


class Stages:
    """The stages of a server.

    Args:
        plugs: The plugs of stages of batches, open.
        orders: Those of stages of the order, as samples pass them.

    Attributes:
        order_words: How refusals of tokens name each stage of the order.
        kinds: The kinds of stages of batches, by the full name of the type of their options.
        order_kinds: The plugs of stages of the order that requests may ask for, by the same.
    """

    def __init__(self, plugs: Sequence[StagePlug] = (), orders: Sequence[OrderPlug] = ()) -> None:
        self._plugs, self._orders = plugs, orders
        self.order_words = {plug.name: plug.words for plug in orders}
        self.order_kinds = {
            plug.options.DESCRIPTOR.full_name: plug for plug in orders if plug.options is not None
        }
        kinds = [kind for plug in plugs for kind in plug.kinds]
        self.kinds = {kind.options.DESCRIPTOR.full_name: kind for kind in kinds}
        limits = [*(kind.limits for kind in kinds), *(plug.limits for plug in orders)]
        self._limits = ListLimits(dict(ChainMap(*map(dict, limits))))

    def close(self) -> None:
        """Close the plugs; all streams have ended."""
        closing = [*(plug.close for plug in self._orders), *(plug.close for plug in self._plugs)]
        for close in closing:
            close()

    def asked(self, messages: Sequence[AnyMessage]) -> tuple[Asked, ...]:
        """Return the stages that a request asks for.

        Raises:
            BadArgumentError: This server has no such stage, or it would change the server's column.
        """
        found: list[Asked] = []
        for place, message in enumerate(messages):
            if message.TypeName() in self.order_kinds:
                continue
            kind = self.kinds.get(message.TypeName())
            if kind is None:
                raise BadArgumentError(
                    f"stages[{place}] is a {message.TypeName()[:100] or 'message without a type'}, "
                    "which this server does not have; ask a newer server, or its operator to "
                    "install it",
                    field="stages",
                )
            options = self._unpacked(message, kind.options, f"stages[{place}], {kind.name}")
            if getattr(options, "column", "") == SAMPLE_ID_COLUMN:
                raise BadArgumentError(
                    f"{kind.name}: column {SAMPLE_ID_COLUMN!r} belongs to the server and cannot be "
                    "changed",
                    field="stages",
                )
            # Random numbers depend on the place, which stages of the order must not move.
            found.append(Asked(len(found), kind, options))
        return tuple(found)

    def _unpacked(self, message: AnyMessage, kind: type[Message], title: str) -> Message:
        options = kind()
        try:
            message.Unpack(options)
        except DecodeError as error:
            raise BadArgumentError(f"{title}, cannot be parsed", field="stages") from error
        self._limits.check(options)
        return options

    def of_batches(self, request: pb.ReadBatchesRequest) -> ReadRequest:
        """Return what a request for batches asks to read.

        Raises:
            BadArgumentError: A stage of the order is invalid, or there twice.
            TokenMalformedError: The token is invalid.
        """
        return ReadRequest(
            request.dataset,
            request.fingerprint,
            request.stages,
            self.options(request.stages),
            request,
            token_of(request),
        )

    def of_batch(self, request: pb.GetBatchRequest) -> ReadRequest:
        """Return what a request for one batch asks to read; see `of_batches`."""
        return self.of_batches(stream_request(request))

    def of_samples(self, request: pb.GetSamplesRequest) -> ReadRequest:
        """Return what a request for samples by id asks to read; see `of_batches`."""
        stages = request.stages
        return ReadRequest(request.dataset, request.fingerprint, stages, self.options(stages))

    def options(self, messages: Sequence[AnyMessage]) -> dict[type[Message], Message]:
        """Return the options of stages of the order, by type.

        Raises:
            BadArgumentError: One is invalid, or there twice.
        """
        found: dict[type[Message], Message] = {}
        for place, message in enumerate(messages):
            plug = self.order_kinds.get(message.TypeName())
            if plug is None or plug.options is None:
                continue
            title = f"stages[{place}], {plug.name}"
            if plug.options in found:
                raise BadArgumentError(f"{title}, is there twice; give it once", field="stages")
            found[plug.options] = self._unpacked(message, plug.options, title)
        return found

    def find(self, request: ReadRequest, finding: Finding) -> Served:
        """Return the dataset that a request reads, or what a stage of the order opens instead.

        A version that the request names, or its token, is opened if the store still has it: so a
        run keeps its order after an append.

        Raises:
            BadArgumentError: No dataset is named.
            DatasetNotFoundError: The caller may read no dataset of that name.
            TokenDatasetChangedError: The store does not have that version, or no longer.
            HeadraceError: See `OrderPlug.opened` and `OrderPlug.narrowed`.
        """
        for plug in self._orders:
            if plug.options in request.order_stages:
                found = plug.opened(request, finding)
                if found is not None:
                    return found
        member = finding.catalog.served(request.dataset).version(request.version)
        narrowing = [
            message
            for message in request.stages
            if (kind := self.order_kinds.get(message.TypeName())) and kind.narrows
        ]
        return finding.narrow(member, narrowing) if narrowing else member

    def narrowed(self, member: Member, stages: Sequence[AnyMessage], asker: Asker) -> Member:
        """Return what stages leave of a dataset; see `OrderPlug.narrowed`.

        Raises:
            BadArgumentError: One is unknown, or does not choose from the samples of a dataset.
        """
        given = self.options(stages)
        plugs = [plug for plug in self._orders if plug.narrows and plug.options in given]
        if len(plugs) < len(stages):
            kinds = ", ".join(message.TypeName()[:100] for message in stages)
            raise BadArgumentError(
                f"the stages [{kinds}] are given for {member.name!r}, but not all of them choose "
                "from the samples of a dataset, as filters do; leave the others out",
                field="stages",
            )
        for plug in plugs:
            member = plug.narrowed(member, given[cast("type[Message]", plug.options)], asker)
        return member

    def derived(self, dataset: ServedDataset, suffix: str) -> Member | None:
        """Return what a stage of the order makes of a dataset; see `OrderPlug.derived`."""
        found = (plug.derived(dataset, suffix) for plug in self._orders)
        return next((each for each in found if each is not None), None)

    def reading(self, request: ReadRequest, served: Served) -> Served:
        """Return what a request reads, behind the stages of the order that it asks for.

        Args:
            request: The request.
            served: The dataset or mixture that it names.

        Raises:
            HeadraceError: See `OrderPlug.reading`.
        """
        token = request.token
        for plug in self._orders:
            is_known = token is not None and token.stage(plug.name)
            if is_known or plug.options in request.order_stages:
                served = plug.reading(served, request)
        return served

    def first(
        self, served: Served, columns: tuple[WireColumn, ...]
    ) -> tuple[WireColumn, Stage] | None:
        """Return the stage that makes columns of what a dataset stores; see `StagePlug.first`."""
        behind = ((plug, plug.behind) for plug in self._plugs)
        asked = [plug for plug, kind in behind if kind and served.stage(kind) is not None]
        found = (plug.first(served, columns) for plug in asked)
        return next((each for each in found if each is not None), None)

    def titles(self, request: ReadRequest) -> tuple[str, ...]:
        """Return what tokens contain about the stages of a request, and check its token.

        Raises:
            BadArgumentError: A stage is unknown.
            TokenSpecChangedError: The token is for other stages, or it would be too long.
            ConfigurationError: This server lacks what a stage needs.
        """
        asked, token = self.asked(request.stages), request.token
        own = [title for each in asked if (title := each.kind.title(each.options))]
        found = (plug.mark(asked) for plug in self._plugs)
        marks = {each.name: each for each in found if each is not None}
        titles = (*own, *(mark.title for mark in marks.values() if mark.title))
        size = len(",".join(titles))
        if size > TRANSFORMS_LIMIT_BYTES:
            raise TokenSpecChangedError(
                f"the transforms {','.join(titles)} have {size} characters in total, but at most "
                f"{TRANSFORMS_LIMIT_BYTES} fit into a token; use fewer, or shorter names",
                field="stages",
            )
        if token is not None and token.stage("transforms") != ",".join(titles):
            _check(token.stage("transforms"), own, marks)
        return titles


NO_STAGES = Stages()
"""The stages of a server without any."""


def _check(found: str, own: Sequence[str], marks: Mapping[str, Mark]) -> None:
    """Refuse a token for other stages."""
    shared: dict[str, str] = {}
    others = []
    for title in found.split(",") if found else []:
        name = title.partition("@")[0]
        if name in marks:
            shared[name] = title
        else:
            others.append(title)
    if others != list(own):
        raise TokenSpecChangedError(
            f"the token is for the transforms [{','.join(others)}], but [{','.join(own)}] are "
            "requested; request the token's, in the same order, or start over",
            token_transforms=",".join(others),
            transforms=",".join(own),
        )
    for name, mark in marks.items():
        mark.check(shared.get(name, ""))


def open_stages(config: ServerConfig, metrics: Metrics, turns: Turns | None = None) -> Stages:
    """Open all installed stages.

    Args:
        config: The settings of the server.
        metrics: Its metrics.
        turns: The turns of its callers; None if nobody has to wait for others.

    Raises:
        ConfigurationError: A setting cannot be used.
    """
    with ExitStack() as stack:
        plugs = []
        for folder in folders_of(STAGES):
            plugs.append(folder.Plug(config, metrics))
            stack.callback(plugs[-1].close)
        stack.pop_all()
    return Stages(plugs, open_order_stages(metrics, turns or NoTurns()))


def check_stages(config: ServerConfig) -> Iterator[str]:
    """Check the settings of all installed stages, and yield what is good about them.

    Raises:
        ConfigurationError: A setting cannot be used.
    """
    for folder in folders_of(STAGES):
        yield from folder.Plug.check(config)
