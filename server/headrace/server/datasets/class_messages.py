"""Make the messages of class names for `GetDataset`, within a limit."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.storage import classes_of
from headrace.v1 import shard_service_pb2 as pb

MAX_SENT_BYTES = 512 << 10
"""Bytes of all class names of a dataset, so that a response stays far below gRPC's 4 MiB."""


def class_messages(schema: pa.Schema) -> list[pb.ColumnClasses]:
    """Return the classes of each column that has some, in storage order.

    If the names of a column would exceed the limit, all are left out, and only their number is
    sent.
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


def class_counts(members: Sequence[Sequence[pb.ColumnClasses]]) -> dict[str, int]:
    """Return the number of classes of each column on which datasets agree.

    A dataset may have additional classes after the common ones.

    Args:
        members: The classes of each dataset.
    """
    columns = [{message.column: message for message in messages} for messages in members]
    counts = {}
    for name in set.intersection(*(set(each) for each in columns)):
        found = sorted((each[name] for each in columns), key=lambda each: each.class_count)
        longest = found[-1]
        if all(
            list(each.names) == list(longest.names[: len(each.names)])
            and (each.names or each.class_count == longest.class_count)
            for each in found
        ):
            counts[name] = longest.class_count
    return counts
