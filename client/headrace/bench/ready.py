"""A bare gRPC server that sends one ready batch over and over: the ceiling of any server.

Run as a program with the sizes of the payload and of its messages: it prints its address and serves
until it is killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from headrace.server.rpc.listen import GRPC_OPTIONS

_MOST_STREAMS = 128
METHOD = "/headrace.bench.Ready/Read"


def _handler(payload_bytes: int, chunk_bytes: int) -> grpc.GenericRpcHandler[bytes, bytes]:
    # Not zeros: the system maps those to a single page, which stays in the nearest cache, so the
    # server spent a third less time on 16 MiB of them than on written bytes.
    payload = memoryview(os.urandom(payload_bytes))
    messages = [
        bytes(payload[start : start + chunk_bytes])
        for start in range(0, payload_bytes, chunk_bytes)
    ]

    def read(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        del request
        while context.is_active():
            yield from messages

    methods = {"Read": grpc.unary_stream_rpc_method_handler(read)}
    return grpc.method_handlers_generic_handler("headrace.bench.Ready", methods)


def main() -> None:
    """Serve."""
    pool = ThreadPoolExecutor(_MOST_STREAMS, thread_name_prefix="headrace-ready")
    server = grpc.server(pool, options=GRPC_OPTIONS)  # as the real one has them
    server.add_generic_rpc_handlers((_handler(*map(int, sys.argv[1:])),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
