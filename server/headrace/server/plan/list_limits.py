"""How long the lists of a message may be, checked before anything goes through them.

A request of 1 MiB can hold 500,000 elements, and going through these in Python takes longer than
refusing them. So lengths are compared with limits right after parsing, and only what is short
enough is looked into.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from headrace.errors import BadArgumentError

_Fields = tuple[tuple[tuple[str, int], ...], tuple[str, ...], tuple[str, ...]]


class ListLimits:
    """Checks messages against the limits of their lists.

    Args:
        limits: The greatest length of each list, by its message and field.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self._fields = cache(self._fields_of)

    def check(self, message: Message) -> None:
        """Refuse a message with a list that is too long.

        The lists of a message are compared before any of its parts is looked into.

        Raises:
            BadArgumentError: There is one; names it, its length and the limit.
        """
        level = [message]
        while level:
            parts: list[Message] = []
            for each in level:
                lists, inner, inner_lists = self._fields(each.DESCRIPTOR)
                for name, limit in lists:
                    if (length := len(getattr(each, name))) > limit:
                        raise BadArgumentError(
                            f"{name} of the {each.DESCRIPTOR.name} has {length} elements; it must "
                            f"have at most {limit}",
                            field=name,
                        )
                parts.extend(getattr(each, name) for name in inner if each.HasField(name))
                for name in inner_lists:
                    parts.extend(getattr(each, name))
            level = parts

    def _fields_of(self, kind: Descriptor) -> _Fields:
        """Return the lists of a message with limits, and its parts and lists of parts to check."""
        limits = {each.name: self._limits.get(f"{kind.name}.{each.name}") for each in kind.fields}
        deep = [
            each.name
            for each in kind.fields
            if each.message_type is not None and any(self._fields(each.message_type))
        ]
        return (
            tuple((name, limit) for name, limit in limits.items() if limit is not None),
            tuple(name for name in deep if limits[name] is None),
            tuple(name for name in deep if limits[name] is not None),
        )
