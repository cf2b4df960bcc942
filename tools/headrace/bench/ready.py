"""A bare gRPC server that repeats one payload: an upper bound for any server.

Run it as a program with the sizes of the payload and of its messages. It prints its address and
serves until it is killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from headrace.server.rpc.listen import GRPC_OPTIONS

_MAX_STREAMS = 128
METHOD = "/headrace.bench.Ready/Read"


def _handler(payload_bytes: int, chunk_bytes: int) -> grpc.GenericRpcHandler[bytes, bytes]:
    # Not zeros, which the system maps to a single page: 16 MiB of them cost the server a third less
    # time than random bytes.
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
    pool = ThreadPoolExecutor(_MAX_STREAMS, thread_name_prefix="headrace-ready")
    server = grpc.server(pool, options=GRPC_OPTIONS)  # those of the real server
    server.add_generic_rpc_handlers((_handler(*map(int, sys.argv[1:])),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
