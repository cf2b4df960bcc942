"""Speak the schema of an earlier release, made from the descriptors that it left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_SERVICE = "headrace.v1.ShardService"


class OldSchema:
    """The messages and calls of a release; nothing of today's stubs is in them."""

    def __init__(self, folder: Path) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString((folder / "schema.binpb").read_bytes())
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)
        self._service = self._pool.FindServiceByName(_SERVICE)

    @property
    def methods(self) -> list[str]:
        """The names of all calls."""
        return [method.name for method in self._service.methods]

    def message(self, name: str) -> Any:
        """Return the class of a message."""
        found = self._pool.FindMessageTypeByName(f"headrace.v1.{name}")
        return message_factory.GetMessageClass(found)

    def call(self, channel: grpc.Channel, method: str) -> Callable[..., Any]:
        """Return what makes a call, with one answer or many."""
        found = self._service.methods_by_name[method]
        make = channel.unary_stream if found.server_streaming else channel.unary_unary
        return cast(
            "Callable[..., Any]",
            make(
                f"/{_SERVICE}/{method}",
                request_serializer=lambda message: cast("Message", message).SerializeToString(),
                response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
            ),
        )

    def _known(self, message: Any) -> bytes:
        """Return a message without what this release does not know."""
        message.DiscardUnknownFields()
        return cast("bytes", message.SerializeToString(deterministic=True))

    @contextmanager
    def relay(self, upstream: str) -> Iterator[str]:
        """Run a server of this release's schema over a server of today; give its address.

        What the old schema lacks does not pass, in either direction: other calls are
        UNIMPLEMENTED, other fields are dropped.
        """
        with grpc.insecure_channel(upstream) as channel:
            handlers = {name: self._handler(channel, name) for name in self.methods}
            server = grpc.server(ThreadPoolExecutor(16))
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(_SERVICE, handlers)]
            )
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            try:
                yield f"127.0.0.1:{port}"
            finally:
                server.stop(1).wait(10)

    def _handler(self, channel: grpc.Channel, name: str) -> Any:
        method = self._service.methods_by_name[name]
        asked = message_factory.GetMessageClass(method.input_type)
        call = self.call(channel, name)

        def answer_once(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return call(request, timeout=240)
            except grpc.RpcError as error:
                _pass_on(error, context)

        def answer_many(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            going = call(request, timeout=240)
            context.add_callback(going.cancel)
            try:
                yield from going
            except grpc.RpcError as error:
                _pass_on(error, context)

        def parse(data: bytes) -> Any:
            message = asked.FromString(data)
            message.DiscardUnknownFields()
            return message

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(answer_many, parse, self._known)
        return grpc.unary_unary_rpc_method_handler(answer_once, parse, self._known)


def _pass_on(error: grpc.RpcError, context: grpc.ServicerContext) -> None:
    context.set_trailing_metadata(cast("tuple[tuple[str, str]]", error.trailing_metadata()))
    context.abort(error.code(), error.details() or "")
