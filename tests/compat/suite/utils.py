"""What MosaicML's tests import from `tests.common.utils`, which their archive leaves out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.common.datasets import NumberAndSayDataset, SequenceDataset

from headrace.compat.streaming import MDSWriter


def convert_to_mds(
    out_root: str,
    dataset_name: str,
    *,
    num_samples: int = 117,
    offset: int = 0,
    compression: str | None = None,
    hashes: list[str] | None = None,
    size_limit: int = 1 << 24,
) -> None:
    """Write one of the two datasets."""
    if dataset_name == "sequencedataset":
        dataset: Any = SequenceDataset(num_samples, offset=offset)
    else:
        dataset = NumberAndSayDataset(num_samples)
    columns = dict(zip(dataset.column_names, dataset.column_encodings, strict=True))
    options = {"compression": compression, "hashes": hashes, "size_limit": size_limit}
    with MDSWriter(out=out_root, columns=columns, **options) as writer:
        for sample in dataset:
            writer.write(sample)


def copy_all_files(source: str, destination: str) -> None:
    """Copy the files of a folder, not its folders."""
    Path(destination).mkdir(exist_ok=True)
    for entry in os.scandir(source):
        if entry.is_file():
            shutil.copy2(entry.path, destination)


def get_config_in_bytes(  # noqa: PLR0917 - theirs
    form: str,
    size_limit: int,
    column_names: list[str],
    column_encodings: list[str],
    column_sizes: list[int | None],
    compression: str | None = None,
    hashes: list[str] | None = None,
) -> bytes:
    """Return the description that a shard holds of itself."""
    config = {
        "version": 2,
        "format": form,
        "compression": compression,
        "hashes": hashes or [],
        "size_limit": size_limit,
        "column_names": column_names,
        "column_encodings": column_encodings,
        "column_sizes": column_sizes,
    }
    return json.dumps(config, sort_keys=True).encode()
