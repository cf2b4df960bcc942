"""The process that runs one transform, and the protocol between it and the server.

It reads batches from a socket and answers each: a byte, a length, and an Arrow IPC stream. No other
part of the server is in this process, so it starts quickly, and a function that crashes or hangs
affects nothing else. This file is run as a script, and imports nothing from headrace.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa

KEY_COLUMN = "headrace.key"
DONE = b"\0"
FAILED = b"\1"
HEAD = struct.Struct("<cQ")

Function = Callable[[pa.RecordBatch, Any], Any]

_TEXT_LIMIT = 1000


def main(descriptor: int, life: int, module: str, name: str) -> None:
    """Answer batches until the other end closes.

    Args:
        descriptor: The descriptor of the socket.
        life: One end of a pipe that closes when the server ends, even if the function never
            returns.
        module: The module of the function.
        name: The name of the function.
    """
    _end_with(life)
    with socket.socket(fileno=descriptor) as server:
        try:
            function = function_of(module, name)
        except BaseException as error:  # noqa: BLE001 - whatever the operator's module does
            send(server, FAILED, _text(error).encode())
            return
        send(server, DONE, b"")
        while (received := receive(server)) is not None:
            _, content = received
            try:
                answer = batch_bytes(_call(function, content))
            except Exception as error:  # noqa: BLE001 - the operator's function may raise anything
                send(server, FAILED, _text(error).encode())
            else:
                send(server, DONE, answer)


def function_of(module: str, name: str) -> Function:
    """Import a function, and check that it takes a batch and keys."""
    try:
        function: Function = getattr(import_module(module), name)
    except SystemExit as error:
        # With code 0 it would pass for success.
        raise ImportError(f"{module} ends the process with {error!r} when imported") from None
    # Some functions written in C do not say what they take.
    with suppress(ValueError):
        signature(function).bind("batch", "keys")
    return function


def send(peer: socket.socket, kind: bytes, content: bytes) -> None:
    """Send one message."""
    peer.sendall(HEAD.pack(kind, len(content)))
    peer.sendall(content)


def receive(peer: socket.socket) -> tuple[bytes, bytes] | None:
    """Wait for one message; None if the other end has closed."""
    head = _exactly(peer, HEAD.size)
    if head is None:
        return None
    kind, length = HEAD.unpack(head)
    content = _exactly(peer, length)
    return None if content is None else (kind, content)


def batch_bytes(batch: pa.RecordBatch) -> bytes:
    """Return a batch with its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def batch_from(content: bytes) -> pa.RecordBatch:
    """Return the batch that `batch_bytes` wrote."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_next_batch()


def _call(function: Function, content: bytes) -> pa.RecordBatch:
    whole = batch_from(content)
    keys = whole.column(whole.schema.get_field_index(KEY_COLUMN))
    batch = whole.drop_columns([KEY_COLUMN])
    made = function(batch, keys)
    if not isinstance(made, pa.RecordBatch):
        raise TypeError(f"it returned a {type(made).__name__}; expected a pyarrow.RecordBatch")
    if made.num_rows != len(keys):
        raise ValueError(f"it returned {made.num_rows} rows for {len(keys)}; expected as many")
    return made


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_TEXT_LIMIT]


def _end_with(life: int) -> None:
    # The kernel ends the process when the other end closes, even if a function never lets a thread
    # run. The thread handles an end that happened before that.
    if sys.platform == "linux":
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(life, fcntl.F_GETFL)
        fcntl.fcntl(life, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(target=_wait_for_end, args=(life,), daemon=True).start()


def _wait_for_end(life: int) -> None:
    os.read(life, 1)
    os._exit(0)


def _exactly(peer: socket.socket, length: int) -> bytes | None:
    content = bytearray(length)
    view = memoryview(content)
    while view:
        count = peer.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return bytes(content)


if __name__ == "__main__":
    # Operators' modules are found where the server runs, not in the folder of this file.
    sys.path[0] = str(Path.cwd())
    function_module, function_name, *descriptors = sys.argv[1:]
    if descriptors:
        main(int(descriptors[0]), int(descriptors[1]), function_module, function_name)
    else:
        function_of(function_module, function_name)
