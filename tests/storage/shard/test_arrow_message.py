"""What a message would decode to is known before Arrow decodes it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.storage.shard.arrow_message import check_plain_file

_CONTINUATION = b"\xff\xff\xff\xff"


def _file() -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"number": [1, 2, 3]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_a_plain_file_is_let_through() -> None:
    """What the others change is fine as it is."""
    check_plain_file(_file(), limit_bytes=1 << 20)


def test_an_end_where_a_batch_should_be_is_refused() -> None:
    """Arrow takes a message of no length for the end of a stream, and says so in its own way."""
    content = _file()
    schema = content.index(_CONTINUATION)
    batch = content.index(_CONTINUATION, schema + 4)
    ended = content[:batch] + _CONTINUATION + bytes(4) + content[batch + 8 :]

    with pytest.raises(ValueError, match=f"no message at byte {batch}"):
        check_plain_file(ended, limit_bytes=1 << 20)
