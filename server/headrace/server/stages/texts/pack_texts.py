"""The stage that packs texts into rows: it places their tokens according to the stored lengths.

Contract:

1. Each document of a batch is tokenized once, even if the batch contains several of its pieces.
2. Before a row is written, the length of each document is compared with the stored length; a
   difference is an error that names the sample.
3. Rows are byte for byte those of a dataset that stores the tokens.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StageFailedError
from headrace.server.batch.batch_values import Batch, split_payload
from headrace.server.batch.compiled_rows import CompiledRows
from headrace.server.batch.stage import Columns, Context, Running, Stage
from headrace.server.cache.gather import BlockRows, spans
from headrace.server.cache.memory.arena import Memory
from headrace.server.layout.block_layout import BlockLayout, Field, Projection, block_layout
from headrace.server.layout.packed_columns import PackedColumns
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.texts.tokenize_texts import texts_of, tokens_of
from headrace.storage import Tokenizer


class PackTexts(Stage):
    """Make the columns of packed rows from a column of texts.

    Args:
        packed: How rows are packed.
        columns: The columns to make, in order, including the server's own.
        tokenizer: The tokenizer that counted the lengths.
        title: Returns a document's name for errors, given the id that it is read by.
        shown_ids: Returns the values of the column of sample ids.
    """

    def __init__(
        self,
        packed: PackedColumns,
        columns: Sequence[WireColumn],
        tokenizer: Tokenizer,
        *,
        title: Callable[[int], str],
        shown_ids: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    ) -> None:
        self._name = packed.name
        self._columns = tuple(columns)
        self._tokenizer = tokenizer
        self._title, self._shown_ids = title, shown_ids
        layout = block_layout(packed.sources)
        self._field = layout.by_name[packed.name]
        projection = Projection(layout, (self._field,))
        self._layout = layout
        self._writer = CompiledRows(columns, projection, packed, title=title)

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        del before  # a single column of texts
        return {column.name: column for column in self._columns}

    def run(self, batch: Batch, context: Context) -> Running[Batch]:
        """Make rows from the text of each piece's document."""
        found = batch.found
        assert found is not None
        pieces, document_ids = found.pieces, found.sample_ids
        assert pieces is not None
        samples, firsts, owners = np.unique(document_ids, return_index=True, return_inverse=True)
        (column,) = batch.columns.values()
        texts = texts_of(column)

        def fail(row: int, reason: str) -> StageFailedError:
            return StageFailedError(
                f"{self._title(int(samples[row]))} cannot be tokenized: {reason}; it is in column "
                f"{self._name!r}",
                column=self._name,
                sample_id=str(pieces.sample_ids[firsts[row]]),
            )

        tokens = yield from tokens_of(
            self._tokenizer, [texts[first] for first in firsts.tolist()], context, fail=fail
        )
        rows = _token_rows(tokens, owners.reshape(-1), self._layout, self._field)
        measured = self._writer.measure(rows, found, 1)
        (size,), (buffer_bytes,) = measured.sizes, measured.buffer_bytes
        context.claim(2 * rows.memory.array.nbytes + size)
        payload = np.empty(size, np.uint8)
        self._writer.write(
            rows,
            self._shown_ids(found.item_ids),
            measured,
            [(b"", payload.ctypes.data, size, 0, None)],
        )
        count = pieces.counts.size
        columns = split_payload(self._columns, payload.data, buffer_bytes, row_count=count)
        return replace(batch, columns=columns, row_count=count)


def _token_rows(
    tokens: Sequence[NDArray[np.int32]],
    owners: NDArray[np.intp],
    layout: BlockLayout,
    field: Field,
) -> BlockRows:
    """Return the tokens of the pieces' documents as the samples of one block.

    Args:
        tokens: The tokens of each document.
        owners: ``(pieces,)``: the document of each piece.
        layout: The layout of the block.
        field: The field of the tokens' column.
    """
    rows = np.zeros((owners.size, layout.parts[0].row_bytes), np.uint8)
    starts, lengths = spans(rows, field)
    sizes = np.array([each.nbytes for each in tokens], np.int64)
    starts[:], lengths[:] = rows.nbytes + (np.cumsum(sizes) - sizes)[owners], sizes[owners]
    memory = np.concatenate([rows.reshape(-1), *(each.view(np.uint8) for each in tokens)])
    return BlockRows(
        layout,
        Memory(memory),
        slot_of=np.zeros(1, np.int32),
        bases=np.zeros((len(layout.parts), 1), np.int64),
        blocks=np.zeros(owners.size, np.int64),
        offsets=np.arange(owners.size),
    )
