"""Write a text that every Python brings with it as documents of tokens.

    python examples/gpt/prepare.py corpus.parquet [MOST_DOCUMENTS]

The text is that of Python's `help()`: the language's reference, a document a paragraph. A token is
a byte, so a model of this corpus needs no tokenizer.
"""

from __future__ import annotations

import sys
from pydoc_data.topics import topics

import pyarrow as pa
import pyarrow.parquet as pq

END = 256
"""What is put behind each document, by ``headrace index --eos 256``."""


def main() -> None:
    """Write the documents."""
    pages = [text for _, text in sorted(topics.items())]
    paragraphs = [part.strip() for text in pages for part in text.split("\n\n")]
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 0  # noqa: PLR2004 - the second argument
    tokens = [list(part.encode()) for part in paragraphs if part][: most or None]
    table = pa.table({"tokens": pa.array(tokens, pa.list_(pa.int16()))})
    pq.write_table(table, sys.argv[1], row_group_size=500)
    print(f"wrote {len(tokens)} documents of {sum(map(len, tokens))} tokens")


if __name__ == "__main__":
    main()
