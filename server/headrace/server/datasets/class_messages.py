"""The names of classes as `GetDataset` sends them, within a limit."""

from __future__ import annotations

import pyarrow as pa

from headrace.storage import classes_of
from headrace.v1 import shard_service_pb2 as pb

MAX_SENT_BYTES = 512 << 10
"""Of all names of a dataset: with them a response stays far below the 4 MiB that gRPC allows."""


def class_messages(schema: pa.Schema) -> list[pb.ColumnClasses]:
    """Return the classes of each column that has some, in storage order.

    Names of a column that would pass the limit are left out whole, and only their number is said.
    """
    messages, left = [], MAX_SENT_BYTES
    for field in schema:
        names = classes_of(field)
        if names is None:
            continue
        message = pb.ColumnClasses(column=field.name, class_count=len(names), names=names)
        if message.ByteSize() > left:
            message.ClearField("names")
        left -= message.ByteSize()
        messages.append(message)
    return messages
