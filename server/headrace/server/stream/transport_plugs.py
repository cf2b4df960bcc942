"""The transports that a server has besides gRPC, and which of them a call asks for.

A folder of `headrace.server.transports` is a plug, and has a class `Plug`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Protocol

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from headrace.errors import BadArgumentError, NoTransportError
from headrace.server.access.callers import Caller
from headrace.server.batch.targets import Outlet
from headrace.server.settings.plug_settings import TRANSPORTS, PlugSettings, folders_of
from headrace.server.settings.server_config import ServerConfig
from headrace.server.shares import Share
from headrace.server.stream.encode_thread import Messages
from headrace.server.stream.fair_turns import Sent
from headrace.server.stream.stream_setup import Contents
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb

MakeSender = Callable[[Sent], Callable[[bytes], bool]]
"""Returns a function that sends messages of a call in turn, and returns whether more may follow."""


class AttachingCall(Protocol):
    """The call of a stream, as a transport sees it; see `headrace.server.front.calls.Call`."""

    caller: Caller
    peer: str
    metadata: Sequence[tuple[str, str | bytes]]

    @property
    def host(self) -> str:
        """The client's address without the port."""

    @property
    def line(self) -> str:
        """Whose turn it is when the call sends."""

    @property
    def is_active(self) -> bool:
        """Whether the client still waits for an answer."""

    @property
    def certificate(self) -> bytes:
        """The client's verified certificate, in PEM; empty without one."""

    def on_end(self, callback: Callable[[], None], /) -> bool:
        """Register a callback for the end of the call; return False if the call has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Attaching:
    """A stream that asks for a transport.

    Attributes:
        call: Its call.
        contents: What it sends.
        share: Its share of the server's memory, which pays for what the transport keeps.
        sender: Returns a function that sends messages when it is the stream's turn.
    """

    call: AttachingCall
    contents: Contents
    share: Share
    sender: MakeSender


class Attached(Outlet, Protocol):
    """A stream's way for its batches, which writes them to it."""

    def running(self, stream: Messages, ahead: Callable[[], Messages]) -> Messages:
        """Return the messages of the stream that are left when its batches are written.

        Args:
            stream: The stream, which makes each message when it is asked for.
            ahead: Returns the stream's messages, made ahead in a thread of their own.
        """

    def carried(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield those of the messages that its call must carry, and send the others.

        Raises:
            HeadraceError: They cannot be sent.
        """

    def close(self) -> None:
        """Free what the stream has of the transport."""


Attachment = Generator[Message, None, Attached]
"""Yields the offer to the client, and returns the way when the client is there."""

Attach = Callable[[Contents, Share], Generator[bytes, None, Attached]]
"""Attaches a stream; yields the messages of its call that come before all others."""


class TransportPlug:
    """The transport of one folder, on one server.

    Args:
        config: The server's settings, which include those of the folder.
        metrics: Where the folder adds its own.

    Attributes:
        settings: The class of the folder's settings.
        options: The type of its options, by which requests name it.
    """

    settings: ClassVar[type[PlugSettings]] = PlugSettings
    options: ClassVar[type[Message]]

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        """Open what the transport needs before the server listens."""

    @classmethod
    def files(cls, config: ServerConfig, limit: int) -> int:
        """Return how many files its streams may have open, besides their connections for gRPC.

        Args:
            config: The settings of the server.
            limit: How many files the process may have open.
        """
        del config, limit
        return 0

    def listen(self, addresses: Sequence[str]) -> None:
        """Start to listen, beside the addresses on which gRPC listens.

        Raises:
            ConfigurationError: An address cannot be bound.
        """

    def attach(self, options: Message, asking: Attaching) -> Attachment:
        """Attach a stream.

        Args:
            options: What the request asks of the transport.
            asking: The stream.

        Raises:
            NoTransportError: This client cannot have the transport.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Attach no more streams; those that are attached stay."""


class Transports:
    """The transports of one server.

    Args:
        plugs: Those that are installed.
    """

    def __init__(self, plugs: Sequence[TransportPlug]) -> None:
        self._plugs = {plug.options.DESCRIPTOR.full_name: plug for plug in plugs}

    def listen(self, addresses: Sequence[str]) -> None:
        """Start to listen; see `TransportPlug.listen`."""
        for plug in self._plugs.values():
            plug.listen(addresses)

    def close(self) -> None:
        """Attach no more streams."""
        with ExitStack() as closing:
            for plug in self._plugs.values():
                closing.callback(plug.close)

    def attach(self, asked: AnyMessage, call: AttachingCall, sender: MakeSender) -> Attach:
        """Return what attaches a call's stream to the transport that it asks for.

        Args:
            asked: The options of the transport.
            call: The call.
            sender: See `Attaching`.

        Raises:
            NoTransportError: There is no such transport here.
            BadArgumentError: Its options cannot be parsed.
        """
        plug = self._plugs.get(asked.TypeName())
        if plug is None:
            raise NoTransportError(
                f"this server has no transport {asked.TypeName()[:100] or 'without a name'}"
            )
        options = plug.options()
        try:
            asked.Unpack(options)
        except DecodeError as error:
            raise BadArgumentError(
                f"the options of the transport {asked.TypeName()} cannot be parsed",
                field="transport",
            ) from error

        def attach(contents: Contents, share: Share) -> Generator[bytes, None, Attached]:
            attachment = plug.attach(options, Attaching(call, contents, share, sender))
            try:
                yield _offer(next(attachment))
                next(attachment)
            except StopIteration as attached:
                found: Attached = attached.value
                return found
            finally:
                attachment.close()
            raise AssertionError("a transport made two offers")

        return attach


def open_transports(config: ServerConfig, metrics: Metrics) -> Transports:
    """Open all installed transports.

    Raises:
        ConfigurationError: A setting cannot be used.
    """
    return Transports([folder.Plug(config, metrics) for folder in folders_of(TRANSPORTS)])


def transport_files(config: ServerConfig, limit: int) -> int:
    """Return how many files the streams of all transports may have open; see `TransportPlug`."""
    return sum(folder.Plug.files(config, limit) for folder in folders_of(TRANSPORTS))


def _offer(offer: Message) -> bytes:
    message = pb.AttachTransportResponse()
    message.offer.Pack(offer)
    return message.SerializeToString()
