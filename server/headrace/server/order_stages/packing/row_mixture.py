"""A mixture of the packed rows of several datasets.

Contract:

1. All have rows of the same length, packed with the same marks and filling from documents of the
   same type, so weights by rows are weights by tokens.
2. Weights, repeats and choices count rows. Each pass over a dataset packs its documents again, and
   holds each of them once (`packed_rows`).
3. A batch shows pairs of a dataset's index and a row's id; its rows show the ids that documents
   have in their own dataset.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import MixtureOrder, MixtureSpec, OrderSpec, Skips, join_skips, stages_of
from headrace.order.packing import pass_packing_key, shared_groups
from headrace.server.datasets.member import Member
from headrace.server.layout.packed_columns import PackedColumns, packed_columns
from headrace.server.order_stages.mixtures.common_columns import SAMPLE_PAIRS
from headrace.server.order_stages.mixtures.served_mixture import (
    ServedMixture,
    add_datasets,
    dataset_counts,
    drawn_bytes,
    id_pairs,
)
from headrace.server.order_stages.packing.packed_rows import PackedFinder
from headrace.server.order_stages.packing.served_rows import PackedStage, ServedRows, rows_bytes
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.skip_lists import digest_of
from headrace.server.plan.stream_request import Readable
from headrace.v1 import shard_service_pb2 as pb


class ServedRowMixture(PackedStage):
    """The rows of several datasets served as one.

    Args:
        members: The rows of each; a mixture may contain each only once.
        spec: The order.
        skips: The documents to skip in each.

    Attributes:
        members: The members as they were given.
        samples_an_item: The approximate documents in a row, for the dataset with the most.

    Raises:
        BadArgumentError: The rows differ in form, or the order is not possible.
    """

    def __init__(
        self, members: Sequence[ServedRows], spec: MixtureSpec, skips: Sequence[Skips | None]
    ) -> None:
        documents = ServedMixture([member.base for member in members], None)
        super().__init__(documents, _packed_alike(members, documents.readable))
        self.members: Final = tuple(members)
        self.samples_an_item = max(member.samples_an_item for member in members)
        self._skips = join_skips(skips, documents.dataset.first_ids)
        self._order = MixtureOrder(spec, [member.table for member in members])
        self._finder = PackedFinder(
            self._order,
            shared_groups([member.rows for member in members]),
            documents.dataset,
            first_ids=documents.dataset.first_ids,
            key=partial(pass_packing_key, spec.order.seed),
            fingerprint=spec.fingerprint,
            lane_bytes=sum(
                map(
                    partial(rows_bytes, spec.order),
                    [member.table for member in members],
                    self._order.memory_samples.tolist(),
                )
            ),
            skips=self._skips,
        )
        self._readable = Readable(
            fingerprint=spec.fingerprint,
            sample_count=self._order.sample_count,
            columns=self.packed.columns,
            refused=_refused(self.members, self.packed, documents.readable),
            max_batch_bytes=members[0].readable.max_batch_bytes,
            id_column=SAMPLE_PAIRS,
            stages=stages_of(mixture=spec.digest, skips=digest_of(self._skips)),
        )

    @property
    def readable(self) -> Readable:
        """Return what requests are checked against."""
        return self._readable

    @property
    def epoch_bytes(self) -> int:
        """Return the raw bytes of the rows that an epoch draws."""
        return drawn_bytes(self._order, [member.table for member in self.members])

    def check_global_batch_size(self, global_batch_size: int) -> None:
        """Refuse a global batch that does not fit how units are composed.

        Raises:
            BadArgumentError: It does not fit.
        """
        self._order.check_global_batch_size(global_batch_size)

    def finder(self, spec: OrderSpec, skips: Skips | None = None) -> Finder:
        """Return the finder for the order of rows, which has this spec."""
        assert self._order.spec.order == spec
        assert skips is None
        return self._finder

    def unskipped_finder(self, spec: OrderSpec) -> Finder:
        """Return the same, because what is skipped changes no position."""
        return self.finder(spec)

    def describe(self, start: pb.StreamStart) -> None:
        """Name the rows; their columns are those of the stream."""
        add_datasets(start, (member.to_proto() for member in self.members), self._skips)

    def shown_ids(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return pairs of a dataset's index and a row's id in it: ``(rows, 2) int64``."""
        return id_pairs(self._order.first_ids, sample_ids)

    def tally(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count rows by dataset: ``(datasets,) int64``."""
        return dataset_counts(self._order.first_ids, sample_ids)


def mix_rows(
    members: Sequence[Member], spec: MixtureSpec, skips: Sequence[Skips | None]
) -> ServedRowMixture:
    """Return the mixture of the rows of several datasets.

    Raises:
        BadArgumentError: Some are samples, or the rows differ in form.
    """
    rows = [each for member in members if (each := member.stage(ServedRows)) is not None]
    if len(rows) < len(members):
        other = next(member for member in members if not member.has_pieces)
        length = rows[0].packed.length
        raise BadArgumentError(
            f"the mixture has packed rows, {rows[0].name!r}, and samples, {other.name!r}; name "
            f"rows of the same length for every dataset, such as '{other.name}:{length}', or for "
            "none",
            field="mixture.datasets",
        )
    return ServedRowMixture(rows, spec, skips)


def _packed_alike(members: Sequence[ServedRows], documents: Readable) -> PackedColumns:
    """Return the columns of the rows of all members.

    Raises:
        BadArgumentError: The rows differ in form.
    """
    first = members[0].packed
    for member in members[1:]:
        ours, theirs = _described(first), _described(member.packed)
        for what, advice in _ALIKE.items():
            if ours[what] != theirs[what]:
                raise BadArgumentError(
                    f"the rows of {members[0].name!r} have {ours[what]}, and those of "
                    f"{member.name!r} {theirs[what]}; {advice}",
                    field="mixture.datasets",
                )
    agreed = [column.name for column in documents.columns]
    if first.name not in agreed:
        raise BadArgumentError(
            f"{documents.refused[first.name]}; documents in a mixture must have the same type",
            field="mixture.datasets",
        )
    common = [
        source.name
        for source in first.sources
        if source.name in agreed and all(source.name in _sources(member) for member in members)
    ]
    return packed_columns(
        documents.columns,
        common,
        length=first.length,
        bos=first.bos,
        eos=first.eos,
        fill=first.fill,
        tokenizer=first.tokenizer,
    )


_ALIKE = {
    "length": (
        "all rows of a mixture must have the same length, so that weights by rows are weights by "
        "tokens: name rows of the same length for each dataset"
    ),
    "marks": (
        "rows in a mixture must be packed in the same way: store their lengths again with the "
        "same --bos, --eos and --fill"
    ),
    "tokenizer": (
        "rows in a mixture must have tokens of one vocabulary: store their lengths again with the "
        "same --tokenizer, or write datasets that contain the tokens"
    ),
    "column": (
        "documents in a mixture must be in columns of the same name: convert one dataset again"
    ),
}


def _described(packed: PackedColumns) -> dict[str, str]:
    marks = ((packed.bos, "bos"), (packed.eos, "eos"), (packed.fill, "fill"))
    return {
        "length": f"{packed.length} elements",
        "marks": ", ".join(
            f"no {name}" if mark is None else f"{name} {mark}" for mark, name in marks
        ),
        "tokenizer": (
            f"tokens of the tokenizer {packed.tokenizer}"
            if packed.tokenizer
            else "the tokens that are stored"
        ),
        "column": f"their documents in the column {packed.name!r}",
    }


def _sources(member: ServedRows) -> set[str]:
    return {source.name for source in member.packed.sources}


def _refused(
    members: Sequence[ServedRows], packed: PackedColumns, documents: Readable
) -> dict[str, str]:
    """Return the reasons against columns that only some of the rows have."""
    known = {source.name for source in packed.sources}
    refused: dict[str, str] = {}
    for member in members:
        for name in sorted(_sources(member) - known - refused.keys()):
            lacking = [other.name for other in members if name not in _sources(other)]
            refused[name] = (
                f"column {name!r} is packed in {member.name!r} but not in {lacking[0]!r}; store "
                "the lengths of both with --alike"
                if lacking
                else documents.refused[name]
            )
    return refused
