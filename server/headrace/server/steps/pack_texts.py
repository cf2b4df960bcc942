"""The step that packs texts into rows: it places their tokens according to the stored lengths.

Contract:

1. Each document of a batch is tokenized once, even if the batch contains several of its pieces.
2. Before a row is written, the length of each document is compared with the stored length; a
   difference is an error that names the sample.
3. Rows are byte for byte those of a dataset that stores the tokens.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StepFailedError
from headrace.order.packing import Pieces
from headrace.server.batch.batch_values import Claim, Values, split_payload
from headrace.server.batch.compiled_rows import CompiledRows
from headrace.server.batch.packed_writer import PackedWriter
from headrace.server.cache.gather import spans
from headrace.server.cache.memory.arena import Memory
from headrace.server.kernels.loader import LOOPS
from headrace.server.layout.block_layout import Field, Projection, block_layout
from headrace.server.layout.packed_columns import PackedColumns
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.steps.row_pool import Waits, Workers
from headrace.server.steps.tokenize_texts import texts_of, tokens_of
from headrace.storage import Tokenizer


class PackTexts:
    """Make the columns of packed rows from a column of texts.

    Args:
        packed: How rows are packed.
        columns: The columns to make, in order, including the server's own.
        tokenizer: The tokenizer that counted the lengths.
        title: Returns a document's name for errors, given the id that it is read by.
        shown_ids: Returns the values of the column of sample ids.
        kernels: The compiled loops, if available.
    """

    def __init__(
        self,
        packed: PackedColumns,
        columns: Sequence[WireColumn],
        tokenizer: Tokenizer,
        *,
        title: Callable[[int], str],
        shown_ids: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        kernels: ModuleType | None = LOOPS,
    ) -> None:
        self._name = packed.name
        self._columns = tuple(columns)
        self._tokenizer = tokenizer
        self._title, self._shown_ids = title, shown_ids
        layout = block_layout(packed.sources)
        self._field = layout.by_name[packed.name]
        projection = Projection(layout, (self._field,))
        self._writer = (
            PackedWriter(columns, projection, packed)
            if kernels is None
            else CompiledRows(kernels, columns, projection, packed)
        )

    def run(
        self,
        found: Values,
        pieces: Pieces,
        document_ids: NDArray[np.int64],
        row_ids: NDArray[np.int64],
        *,
        workers: Workers,
        claim: Claim,
    ) -> Waits[dict[str, Values]]:
        """Return the columns of the rows of a batch.

        Args:
            found: The text of each piece's document.
            pieces: The places of the pieces, with the ids that rows show.
            document_ids: ``(pieces,) int64``: the ids that documents are read by; ids shown in rows
                may come from several datasets.
            row_ids: ``(rows,) int64``, for the column of sample ids.
            workers: The threads that make the tokens.
            claim: Is called with the number of bytes before they are allocated.

        Raises:
            StepFailedError: A document cannot be tokenized or differs from its stored length, or
                the documents take too long.
        """
        samples, firsts, owners = np.unique(document_ids, return_index=True, return_inverse=True)
        texts = texts_of(found)

        def fail(row: int, reason: str) -> StepFailedError:
            return StepFailedError(
                f"{self._title(int(samples[row]))} cannot be tokenized: {reason}; it is in column "
                f"{self._name!r}",
                column=self._name,
                sample_id=str(pieces.sample_ids[firsts[row]]),
            )

        tokens = yield from tokens_of(
            self._tokenizer,
            [texts[first] for first in firsts.tolist()],
            workers=workers,
            claim=claim,
            fail=fail,
        )
        rows = _TokenRows(tokens, owners.reshape(-1), self._field)
        self._writer.expect(pieces, lambda piece: self._title(int(document_ids[piece])))
        measured = self._writer.measure(rows, pieces.sample_ids.size, 1)
        (size,), (buffer_bytes,) = measured.sizes, measured.buffer_bytes
        claim(2 * rows.memory.array.nbytes + size)
        payload = np.empty(size, np.uint8)
        self._writer.write(
            rows, self._shown_ids(row_ids), measured, [(b"", payload.ctypes.data, size, 0)]
        )
        return split_payload(
            self._columns, payload.data, buffer_bytes, row_count=pieces.counts.size
        )


class _TokenRows:
    """The tokens of the pieces' documents, as the row writer reads them.

    Args:
        tokens: The tokens of each document.
        owners: ``(pieces,)``: the document of each piece.
        field: The field of their column.
    """

    def __init__(
        self, tokens: Sequence[NDArray[np.int32]], owners: NDArray[np.intp], field: Field
    ) -> None:
        sizes = np.array([each.nbytes for each in tokens], np.int64)
        self._starts = (np.cumsum(sizes) - sizes)[owners]
        self._sizes = sizes[owners]
        self._field = field
        self.memory = Memory(np.concatenate([*tokens, np.empty(0, np.int32)]).view(np.uint8))

    def packed(self, out: NDArray[np.uint8]) -> None:
        """Write the address of the tokens of each piece's document."""
        starts, sizes = spans(out, self._field)
        starts[:], sizes[:] = self._starts, self._sizes

    def wide(self, part: int, out: NDArray[np.uint8], *, first: int = 0) -> None:
        """Return no other parts."""
