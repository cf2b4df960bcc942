"""Compare an index with the header of one shard of each schema, when a dataset opens.

Each shard is compared when it is read, too. But a damaged name makes a column of its own, which
would be served as null for the samples of all other shards until then.
"""

from __future__ import annotations

import contextlib

import numpy as np

from headrace.errors import ManifestCorruptError, ObjectNotFoundError
from headrace.storage.mds.compression import head_of
from headrace.storage.mds.damage import DamageError
from headrace.storage.mds.description import DescriptionError, check_description, expected_bytes
from headrace.storage.mds.headers import Headers
from headrace.storage.mds.index import Index
from headrace.storage.mds.samples import WORD, header_bytes
from headrace.storage.source.kinds import MDS_INDEX_NAME
from headrace.storage.store.store import Store

_HEAD_BYTES = 1 << 20  # of a compressed shard; bzip2 gives nothing before its first 900 kB


def check_first_shards(store: Store, index: Index, headers: Headers) -> None:
    """Compare the columns of the index with those that shards state themselves.

    It reads the header of the first shard of each schema: one read, or the first MiB of a
    compressed shard. Other damage, and shards that are missing, are reported when they are read.

    Args:
        store: The store of the shards.
        index: The parsed ``index.json``.
        headers: The headers of the dataset.

    Raises:
        ManifestCorruptError: They differ; names the shard and what differs.
        StoreUnavailableError: The store cannot be reached.
    """
    for ordinal, schema in enumerate(index.schemas):
        own = np.flatnonzero(index.schema_ordinals == ordinal)
        filled = own[index.sample_counts[own] > 0]
        shard = int((filled if filled.size else own)[0])
        try:
            with contextlib.suppress(ObjectNotFoundError):
                if schema.compression is not None:
                    _check_compressed(store, index, shard)
                elif schema.text is None:
                    counts = int(index.sample_counts[shard]), int(index.raw_bytes[shard])
                    name = index.stored_names[shard].as_py()
                    headers.offsets(name, schema, counts=counts, samples=(0, 0))
        except DescriptionError as error:
            place = f"{store.url}/{MDS_INDEX_NAME}"
            raise ManifestCorruptError(
                f"{place} contradicts shard {index.stored_names[shard].as_py()}: {error.found}; "
                "restore the one that is damaged, or convert the data again",
                place=place,
            ) from error
        except DamageError:
            continue


def _check_compressed(store: Store, index: Index, shard: int) -> None:
    schema = index.schemas[index.schema_ordinals[shard]]
    assert schema.compression is not None
    if schema.text is not None:
        return
    stored = store.read(index.stored_names[shard].as_py(), length=_HEAD_BYTES)
    header = header_bytes(int(index.sample_counts[shard]))
    raw_bytes = int(index.raw_bytes[shard])
    wanted = min(raw_bytes, header + expected_bytes(schema))
    head = head_of(stored, schema.compression.algorithm, length=wanted, raw_bytes=raw_bytes)
    if len(head) < 2 * WORD.itemsize:
        return
    first = int(np.frombuffer(head, WORD, 1, WORD.itemsize)[0])
    if header <= first <= len(head):
        check_description(head[header:first], schema)
