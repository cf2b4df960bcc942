"""How batches get to a trainer: the way, the memory, the patience, and other servers."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TypeVar

from headrace.arguments import instance, instance_or_none, one_of, shown, whole
from headrace.client.options.private import Fallback, PrivateServer
from headrace.client.options.settings import (
    DEFAULT_MAX_BATCH_BYTES,
    DEFAULT_PREFETCH_BYTES,
    Deadlines,
    Hedge,
)
from headrace.errors import BadArgumentError

TRANSPORTS = "headrace.client.transports"
"""The package of transports besides gRPC, a folder each."""

_MOST_BYTES = 1 << 62


class TransportOptions:
    """What a user may set of one transport: a frozen dataclass."""

    __slots__ = ()


_Options = TypeVar("_Options", bound=TransportOptions)


@dataclass(frozen=True, slots=True)
class Transport:
    """How batches get to this process, how much memory they may use, and how long to wait.

    Attributes:
        kind: ``"auto"`` uses shared memory if the address is the unix socket of a server on this
            host that makes rings, and gRPC otherwise; ``"ring"``, ``"lane"``, ``"lz4"`` and
            ``"grpc"`` use only one of them. `RemoteDataset.stats` says which is used, and why.
        options: Options of transports, such as ``[Ring(ring_bytes=1 << 28)]``.
        prefetch_bytes: Most bytes to hold ready, >= 0, on the device too if there is one; the
            default is arbitrary. Below 4 MiB, what is under way over gRPC counts too.
        max_batch_bytes: Most payload bytes of a batch, >= 1: a larger batch is refused, and no
            memory is allocated for it, whatever the server says.
        deadlines: How long to wait.
        hedge: When to ask a second server for a late batch; None for never. It has no effect with
            a single server, or in DataLoader workers.
        fallback: Where to read the same batches while no server answers; None to wait for a
            server. Needs the ``[server]`` extra.
        private: Settings of a private server, for ``target=None`` and for ``fallback``.

    Raises:
        BadArgumentError: A value is out of range.
    """

    kind: str = "auto"
    options: Sequence[TransportOptions] = ()
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    deadlines: Deadlines = field(default_factory=Deadlines)
    hedge: Hedge | None = None
    fallback: Fallback | None = None
    private: PrivateServer = field(default_factory=PrivateServer)

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        one_of("transport.kind", self.kind, ("auto", "grpc", *transport_names()))
        for name, least in (("prefetch_bytes", 0), ("max_batch_bytes", 1)):
            value = whole(f"transport.{name}", getattr(self, name), low=least, high=_MOST_BYTES)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "options", _checked(self.options))
        instance("transport.deadlines", self.deadlines, Deadlines, wanted="Deadlines(connect_s=…)")
        instance_or_none("transport.hedge", self.hedge, Hedge, wanted="a Hedge(…), or None")
        wanted = "Fallback('s3://bucket/path'), or None"
        instance_or_none("transport.fallback", self.fallback, Fallback, wanted=wanted)
        wanted = "PrivateServer(cache_bytes=…, store={…})"
        instance("transport.private", self.private, PrivateServer, wanted=wanted)

    def of(self, kind: type[_Options]) -> _Options:
        """Return the options of one transport."""
        return next((each for each in self.options if isinstance(each, kind)), None) or kind()


@functools.cache
def transport_names() -> tuple[str, ...]:
    """Return the names of the installed transports besides gRPC."""
    path = import_module(TRANSPORTS).__path__
    return tuple(sorted(each.name for each in pkgutil.iter_modules(path) if each.ispkg))


def _checked(options: object) -> tuple[TransportOptions, ...]:
    found = tuple(options) if isinstance(options, Sequence) else (options,)
    kinds = [type(each) for each in found]
    for each in found:
        if not isinstance(each, TransportOptions) or kinds.count(type(each)) > 1:
            raise BadArgumentError(
                f"transport.options has {shown(each)}; expected options of transports, one of a "
                "kind, such as [Ring(ring_bytes=1 << 28)]",
                field="transport.options",
            )
    return found


def transport_of(transport: Transport | None) -> Transport:
    """Return the transport that an argument means; None for the defaults."""
    wanted = "Transport('ring'), Transport(prefetch_bytes=…), or None"
    return instance_or_none("transport", transport, Transport, wanted=wanted) or Transport()
