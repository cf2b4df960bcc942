"""The payload of a batch: where its buffers lie and what their elements are, with no I/O.

``docs/protocol.md`` specifies it so that another language could implement it.
"""

from headrace.payload.elements import BFLOAT16, ELEMENT_DTYPES, SAMPLE_ID_COLUMN
from headrace.payload.layout import (
    ALIGNMENT,
    OFFSET_BYTES,
    PayloadColumn,
    PayloadLayout,
    aligned,
    layout_of,
    place_buffers,
)

__all__ = [
    "ALIGNMENT",
    "BFLOAT16",
    "ELEMENT_DTYPES",
    "OFFSET_BYTES",
    "SAMPLE_ID_COLUMN",
    "PayloadColumn",
    "PayloadLayout",
    "aligned",
    "layout_of",
    "place_buffers",
]
