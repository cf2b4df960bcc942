"""The interface of what a request may name: a dataset, or what a stage of the order made of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.order import MixtureSpec, Skips
from headrace.server.datasets.served import Mixed, Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.v1 import shard_service_pb2 as pb


class Member(Served, Protocol):
    """What a mixture may have, all of one kind, and a request may name."""

    @property
    def base(self) -> ServedDataset:
        """The dataset of its samples."""

    @property
    def classes(self) -> list[pb.ColumnClasses]:
        """The class names of its label columns, as far as they fit into a response."""

    def version(self, fingerprint: str) -> Member:
        """Return the version with a fingerprint; this one if it is empty.

        Raises:
            HeadraceError: There is none, or it cannot be opened.
        """

    def candidates(self) -> tuple[str, ...]:
        """Return the fingerprints of all versions, this one first.

        Raises:
            HeadraceError: The store cannot be reached.
        """

    def mixed(
        self, members: Sequence[Member], spec: MixtureSpec, skips: Sequence[Skips | None]
    ) -> Mixed | None:
        """Return the mixture of members of its kind; None for one of samples.

        Raises:
            BadArgumentError: Some are of another kind, or they differ in form.
        """

    def to_proto(self) -> pb.Dataset:
        """Return the wire's description of it."""
