"""The stage of the exercise as users write it, and its message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessages

from headrace.client import Stage

# What protoc would make of: message Negate { string column = 1; }
_FILE = FileDescriptorProto(name="exercise/negate.proto", package="exercise", syntax="proto3")
_FILE.message_type.add(name="Negate").field.add(
    name="column",
    number=1,
    type=FieldDescriptorProto.TYPE_STRING,
    label=FieldDescriptorProto.LABEL_OPTIONAL,
)
NegateOptions: Final[Any] = GetMessages([_FILE])["exercise.Negate"]


@dataclass(frozen=True, slots=True)
class Negate(Stage):
    """Change the sign of the numbers of a column.

    Attributes:
        column: The column.
    """

    column: str

    def to_message(self) -> Message:
        """Write the stage down for the wire."""
        message: Message = NegateOptions(column=self.column)
        return message

    def title(self) -> str:
        """Return its version and the column."""
        return f"negate@1-{self.column}"
