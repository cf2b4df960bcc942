"""Megatron Energon: a prepared crude dataset in a savable loader, each rank with its own state.

Resuming: nvidia.github.io/Megatron-Energon/basic/save_restore.html, the state per rank separately
Ranks: .../advanced/repro_scaling.html: the product of ranks and workers has to stay the same
Mixtures: .../basic/metadataset.html, ``blend`` by weight
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds
from megatron.energon import (  # type: ignore[import-not-found]
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.flavors.webdataset.prepare import (  # type: ignore[import-not-found]
    WebdatasetPreparator,
)

from exam.entry import Batch, NotOffered, Shards
from exam.job import GLOBAL_BATCH, ROW_TOKENS, SAMPLES, SHARD_SAMPLES, Job, document
from exam.pictures import decoded

_SHUFFLED = 100
_PACKED_AT_ONCE = 48  # documents
_PACKED_STEPS = 25  # of about an epoch
_DATASET = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


def write(folder: Path, shards: Shards) -> None:
    """Write a tar file a shard, and prepare them as ``energon prepare`` does."""
    folder.mkdir(exist_ok=True)
    for shard in shards:
        with wds.TarWriter(str(folder / f"{shard[0][0]:08d}.tar")) as writer:
            for sample_id, value in shard:
                about = json.dumps(sample_id).encode()
                writer.write({"__key__": f"{sample_id:08d}", "id": about, "bin": value})
    paths = sorted(path.name for path in folder.glob("*.tar"))
    WebdatasetPreparator.prepare_dataset(
        folder, paths, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    (folder / ".nv-meta" / "dataset.yaml").write_text(_DATASET)


append = write  # prepared again
write_documents = write  # a document is made of its sample's number


@dataclass
class _Bytes(Sample):  # type: ignore[misc]
    number: int
    value: Any  # bytes, or pixels


@stateless  # type: ignore[untyped-decorator]
def _cook(sample: dict[str, Any]) -> _Bytes:
    return _Bytes(
        **basic_sample_keys(sample), number=int(sample["id"]), value=decoded(sample["bin"])
    )


class _Encoder(DefaultTaskEncoder):  # type: ignore[misc]
    cookers = (Cooker(_cook),)

    def batch(self, samples: list[_Bytes]) -> Any:
        """Return columns, since the default makes tensors of numbers."""
        return [each.number for each in samples], [each.value for each in samples]


class _Packer(_Encoder):
    """Packs as the page on packing shows: the user's code chooses what shares a row."""

    def select_samples_to_pack(self, samples: list[_Bytes]) -> list[list[_Bytes]]:
        """Fill a row after the other with documents in the order of the buffer."""
        rows: list[list[_Bytes]] = []
        left = 0
        for sample in samples:
            length = len(document(sample.number))
            if length > left:
                rows.append([])
                left = ROW_TOKENS
            rows[-1].append(sample)
            left -= length
        return rows

    @stateless  # type: ignore[untyped-decorator]
    def pack_selected_samples(self, samples: list[_Bytes]) -> _Bytes:
        """Join the documents of a row."""
        joined = b"".join(np.array(document(each.number), np.int64).tobytes() for each in samples)
        row: _Bytes = _Bytes.derive_from(samples[0], number=samples[0].number, value=joined)
        return row

    def batch(self, samples: list[_Bytes]) -> Any:
        """Return the tokens of all rows."""
        rows = [np.frombuffer(each.value, np.int64).tolist() for each in samples]
        return [token for row in rows for token in row], []


def open_packed(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open a loader whose encoder packs."""
    return open_stream(job, epoch, states)


def open_stream(job: Job, epoch: int, states: Sequence[Any]) -> _Stream:
    """Open a loader, with the state of the same rank."""
    del epoch  # it is in the state
    if states and len(states) * states[0]["workers"] != job.world * max(job.workers, 1):
        raise NotOffered("the product of ranks and workers has to stay the same")
    if states and len(states) != job.world:
        raise NotOffered("a state is of its rank")
    dataset = get_train_dataset(
        _path(job),
        batch_size=job.batch,
        shuffle_buffer_size=_SHUFFLED if job.shuffle else None,
        max_samples_per_sequence=SHARD_SAMPLES if job.shuffle else None,
        shuffle_over_epochs_multiplier=1 if job.shuffle else None,
        worker_config=WorkerConfig(
            rank=job.rank,
            world_size=job.world,
            num_workers=job.workers,
            seed_offset=job.seed,
        ),
        task_encoder=_Packer() if job.is_packed else _Encoder(),
        packing_buffer_size=_PACKED_AT_ONCE if job.is_packed else None,
    )
    loader = get_savable_loader(dataset)
    if states:
        loader.restore_state_rank(states[job.rank]["state"])
    return _Stream(job, loader)


def _path(job: Job) -> Path:
    if len(job.folders) == 1:
        return Path(job.folders[0])
    parts = "".join(f"      - weight: 1\n        path: {folder}\n" for folder in job.folders)
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
    path = Path(job.log).with_suffix(".yaml")
    path.write_text(f"{head}    blend:\n{parts}")
    return path


class _Stream:
    def __init__(self, job: Job, loader: Any) -> None:
        self._loader = loader
        self._batches = iter(loader)
        self._workers = max(job.workers, 1)
        self._size = job.batch * job.world
        self._epoch_samples = SAMPLES * len(job.folders)
        self._packed_left = _PACKED_STEPS - job.resume_step if job.is_packed else 0
        self._left = self._epoch_samples - job.resume_step * GLOBAL_BATCH % self._epoch_samples

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield as many batches as an epoch has, since a training set loops without an end."""
        del number
        steps = self._left // self._size
        if self._packed_left:
            steps = self._packed_left
        yield from itertools.islice(self._batches, steps)
        self._left = self._epoch_samples

    def state(self) -> Any:
        return {"state": self._loader.save_state_rank(), "workers": self._workers}
