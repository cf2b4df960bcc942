"""Functions that the server's operator has registered, as stages."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.arguments import instance, text
from headrace.client.options.stage import Stage
from headrace.errors import BadArgumentError
from headrace.v1 import transforms_pb2 as pb


@dataclass(frozen=True, slots=True)
class Transform(Stage):
    """Call a function that the server's operator has registered, over all columns.

    Tokens contain its name and version: a run resumes only with the same ones.

    Attributes:
        name: Its name on the server.
        version: Its version; empty for the server's.
    """

    name: str
    version: str = ""

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Transform.name", self.name, wanted="a name that the operator gave")
        instance("Transform.version", self.version, str, wanted="a str")

    def to_message(self) -> pb.Transform:
        """Write the stage down for the wire."""
        return pb.Transform(name=self.name, version=self.version)

    def title(self) -> str:
        """Return its name and version."""
        if not self.version:
            raise BadArgumentError(
                f"the version of the transform {self.name!r} is chosen by the server, so there is "
                "no state before the first batch; give its version, or take the state later",
                field="stages",
            )
        return f"{self.name}@{self.version}"
