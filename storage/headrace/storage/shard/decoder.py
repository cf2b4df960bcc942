"""Decode blocks of one schema on the calling thread, without Arrow's thread pool.

``pyarrow.ipc.read_record_batch`` passes each column to a thread pool. A server decodes several
blocks at the same time, so this only costs: a third of the time for 32 columns, three quarters for
images (tests/benchmarks/bench_decode.py). Arrow's stream reader can do without the pool, so blocks
are fed to stream readers that stay open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa

from headrace.storage.shard.validation import BatchValidator

if TYPE_CHECKING:
    import io

_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


class BlockDecoder:
    """Decodes stored messages of one schema; thread-safe.

    1. Success: the reader becomes idle. There are as many readers as threads ever decoded at the
       same time.
    2. Failure: the reader is discarded, because it may wait for the rest of a message.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._idle: list[_FedReader] = []
        self._validator = BatchValidator(schema)

    def decode(self, stored: bytes | memoryview) -> pa.RecordBatch:
        """Return the batch in a message; it refers to ``stored`` if that is not compressed.

        Raises:
            pa.ArrowException: It is not a record batch of the schema.
            EOFError, OSError, ValueError: See above.
        """
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = _FedReader(self._schema)
        batch = reader.read(stored)
        self._idle.append(reader)
        return batch

    def view(self, message: pa.Message) -> pa.RecordBatch:
        """Return the batch in a message that is not compressed; it refers to the message's bytes.

        This needs no threads of Arrow, and takes a fifth of the time of `decode`.

        Raises:
            pa.ArrowException: It is not a record batch of the schema.
            EOFError, OSError, ValueError: See above.
        """
        return pa.ipc.read_record_batch(message, self._schema)

    def validate(self, batch: pa.RecordBatch, *, states_nulls: bool) -> None:
        """Check what is cheap to check in a batch from `decode`.

        Args:
            batch: The batch.
            states_nulls: `MessageSize.states_nulls` of the message.

        Raises:
            pa.ArrowInvalid: An offset leads out of its buffer, or a string is not UTF-8.
            ValueError: A column that is not nullable holds a null.
        """
        self._validator.validate(batch)
        if states_nulls:
            self._validator.refuse_nulls(batch)


class _FedReader:
    """A stream reader that is fed one message after another."""

    def __init__(self, schema: pa.Schema) -> None:
        self._feed = _Feed(schema.serialize().to_pybytes())
        source = pa.PythonFile(cast("io.IOBase", self._feed), mode="r")
        self._reader = pa.ipc.open_stream(source, options=_OPTIONS)

    def read(self, stored: bytes | memoryview) -> pa.RecordBatch:
        """Return the batch in a message."""
        self._feed.refill(stored)
        try:
            return self._reader.read_next_batch()
        except StopIteration as error:
            raise ValueError("a stream that ends") from error
        finally:
            self._feed.refill(b"")


class _Feed:
    """A file for Arrow with replaceable content; reads do not copy."""

    closed = False

    def __init__(self, content: bytes) -> None:
        self._rest = memoryview(content)

    def refill(self, content: bytes | memoryview) -> None:
        """Replace the content, and start at its beginning."""
        self._rest = memoryview(content)

    def read(self, length: int) -> memoryview:
        """Return the next bytes."""
        found = self._rest[:length]
        self._rest = self._rest[length:]
        return found

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing, because the caller owns the content."""
