"""What the numbers in a column of labels mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.errors import UnsupportedColumnError
from headrace.v1 import shard_service_pb2 as pb


class Classes(Mapping[str, tuple[str, ...]]):
    """Names of classes by column: value i of the column means the i-th name.

    For a mixture, the names on which its datasets agree: one dataset may append classes to those
    of another. Access to a column in which they disagree is an error.

    Attributes:
        versions: Name and fingerprint of each requested dataset.
    """

    def __init__(self, answers: Sequence[pb.GetDatasetResponse]) -> None:
        """Take the servers' descriptions of the datasets, in their order."""
        self.versions = [(answer.dataset.name, answer.dataset.fingerprint) for answer in answers]
        self._columns: dict[str, dict[str, pb.ColumnClasses]] = {}
        for answer in answers:
            for noted in answer.classes:
                self._columns.setdefault(noted.column, {})[answer.dataset.name] = noted

    def __getitem__(self, column: str) -> tuple[str, ...]:
        """Return the names of a column's classes.

        Raises:
            KeyError: The column has no classes.
            UnsupportedColumnError: There are too many classes for a server to send, or the datasets
                of a mixture do not agree on them.
        """
        if column not in self._columns:
            known = ", ".join(sorted(self._columns)) or "none"
            raise KeyError(f"column {column!r} has no classes; columns with classes: {known}")
        longest: tuple[str, ...] = ()
        holder = ""
        for name, _ in self.versions:
            found = self._names(column, name)
            _check_agree(column, (holder, longest), (name, found))
            if len(found) > len(longest):
                holder, longest = name, found
        return longest

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        counts = {
            column: max(noted.class_count for noted in members.values())
            for column, members in self._columns.items()
        }
        return f"Classes({', '.join(f'{column}: {n:,}' for column, n in counts.items())})"

    def _names(self, column: str, dataset: str) -> tuple[str, ...]:
        noted = self._columns[column].get(dataset)
        if noted is None:
            others = ", ".join(sorted(self._columns[column]))
            raise UnsupportedColumnError(
                f"column {column!r} has classes in {others} but not in {dataset}, where its "
                "numbers may mean something else; convert both datasets in the same way, or look "
                "at each separately",
                column=column,
            )
        if noted.class_count != len(noted.names):
            raise UnsupportedColumnError(
                f"column {column!r} of {dataset} has {noted.class_count:,} classes, more names "
                "than a server sends; read them from the store, with `headrace inspect URL --json`",
                column=column,
            )
        return tuple(noted.names)


def _check_agree(
    column: str, one: tuple[str, Sequence[str]], other: tuple[str, Sequence[str]]
) -> None:
    for number, (left, right) in enumerate(zip(one[1], other[1], strict=False)):
        if left != right:
            raise UnsupportedColumnError(
                f"class {number} of column {column!r} is {left!r} in {one[0]} but {right!r} in "
                f"{other[0]}; convert both datasets with the same classes, or use only one of them",
                column=column,
            )
