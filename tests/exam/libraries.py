"""The libraries: their environments, what they promise, and where they say so."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.libraries import EXAM_PACKAGES, library_of
from support.environments import environment

_ENERGON = ("torch==2.13.0", "megatron-energon==7.4.1", "pillow==13.0.0")
_RAY = (
    *("torch==2.13.0", "ray[data]==2.60.0", "pillow==13.0.0"),
    *("aiohttp==3.14.5", "requests==2.34.2"),
)
_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One library of the exam.

    Attributes:
        name: What it is called.
        entry: Module of its entry.
        package: Whose version counts.
        python: Returns the interpreter; makes the environment where it is not there yet.
        page: Where its documentation tells how to resume.
        promise: What is said there, in our words.
        has_service: Whether trainers read from a service; ``serve`` of the entry is it.
        imports: What is imported once, before processes are forked; the entry where it is empty.
        remark: What a reader of its answers should know.
        files: Which of the files that it writes hold samples, as a pattern.
        packs: Whether it packs documents into rows.
        reads_s3: Whether its entry reads from an S3 store too.
        cold: How it reads a store that gives no lists, ``s3`` or ``http``, or why it does not.
        stateless: Why a run cannot be resumed, of libraries without states.
        minutes: About how long its questions take.
        save_every: Steps between two states; odd, so that two workers are not at the same batch.
    """

    name: str
    entry: str
    package: str
    python: Callable[[], str]
    page: str
    promise: str
    files: str
    remark: str = ""
    has_service: bool = False
    imports: tuple[str, ...] = ()
    packs: bool = False
    reads_s3: bool = False
    cold: str = "its entry reads local files"
    stateless: str = ""
    minutes: float = 3.0
    save_every: int = 7

    def version(self) -> str:
        """Return the version that is installed in its environment."""
        if self.python() == sys.executable:
            return importlib.metadata.version(self.package)
        command = [self.python(), "-c", _VERSION, self.package]
        return subprocess.check_output(command, text=True, timeout=60).strip()


def _own() -> str:
    return sys.executable


def _torch_peers() -> str:
    return library_of("mosaic").python()


def _exam() -> str:
    return str(environment("exam", EXAM_PACKAGES) / "bin" / "python")


def _energon() -> str:
    return str(environment("exam-energon", _ENERGON) / "bin" / "python")


def _tensorflow() -> str:
    return library_of("tfdata").python()


def _ray() -> str:
    return str(environment("exam-ray", _RAY) / "bin" / "python")


LIBRARIES = (
    Library(
        name="headrace",
        entry="exam.entries.ours",
        package="headrace",
        python=_own,
        page="https://github.com/headrace/headrace/blob/main/docs/client.md#checkpoints",
        promise="The same global batches after a resume with any number of ranks and workers, "
        "also after kills of trainers or servers; another seed or shuffle is refused.",
        files="*.arrow",
        cold="s3",
        has_service=True,
        reads_s3=True,
        packs=True,
    ),
    Library(
        name="MosaicML Streaming",
        entry="exam.entries.mosaic",
        package="mosaicml-streaming",
        python=_torch_peers,
        page="https://docs.mosaicml.com/projects/streaming/en/latest/distributed_training/fast_resumption.html",
        promise="Immediate, deterministic resumption in mid-epoch; samples in the same order "
        "whatever the number of GPUs, nodes and workers.",
        files="*.mds",
        cold="s3",
        reads_s3=True,
    ),
    Library(
        name="torchdata StatefulDataLoader",
        entry="exam.entries.stateful",
        package="torchdata",
        python=_own,
        page="https://meta-pytorch.org/data/0.11/stateful_dataloader_tutorial.html",
        promise="Mid-epoch checkpoints of a loader, across its workers but not across ranks.",
        files="*.rows",
        cold="it reads what a user can index",
    ),
    Library(
        name="LitData",
        entry="exam.entries.lit",
        package="litdata",
        python=_torch_peers,
        page="https://github.com/Lightning-AI/litData#pause-resume",
        promise="Pause and resume; the numbers of workers and ranks may change without duplicates, "
        "with the same seed and shuffle. Combined datasets resume on the same topology alone.",
        files="*.bin",
        cold="its client refuses plain HTTP",
        remark="It is asked with drop_last=True, as its pages recommend for several ranks: what is "
        "lost with other workers or ranks is the remainder after the rest was dealt again.",
    ),
    Library(
        name="WebDataset",
        entry="exam.entries.webdata",
        package="webdataset",
        python=_exam,
        page="https://webdataset.github.io/webdataset/",
        promise="Nothing about resuming.",
        files="*.tar",
        cold="http",
        stateless="pipelines have no state",
    ),
    Library(
        name="Hugging Face datasets",
        entry="exam.entries.hf",
        package="datasets",
        python=_exam,
        page="https://huggingface.co/docs/datasets/main/en/stream#save-a-dataset-checkpoint-and-resume-iteration",
        promise="A state resumes where it was saved, but for the samples in shuffle buffers, "
        "which are lost.",
        files="*.parquet",
        cold="http",
        remark="The buffer is of 100 samples here; the default is 1,000. A resume logs that it "
        "will be filled again.",
    ),
    Library(
        name="Grain",
        entry="exam.entries.grains",
        package="grain",
        python=_exam,
        page="https://google-grain.readthedocs.io/en/latest/tutorials/dataset_advanced_tutorial.html",
        promise="Checkpoints of iterators; with ElasticIterator, of any shard for all shards after "
        "a change in their number.",
        files="*.rows",
        cold="it reads what a user can index",
        packs=True,
    ),
    Library(
        name="LanceDB",
        entry="exam.entries.lance",
        package="lancedb",
        python=_exam,
        page="https://docs.lancedb.com/training/resuming",
        promise="Exact resume on the same or another number of ranks and workers, with the same "
        "splits and seed; the same samples at each step for any of them.",
        files="*.lance",
        cold="it asks for lists of objects",
        remark="A rank's step is a batch of each of its workers, one sample of each split, since "
        "steps are defined by splits: with one batch of one worker a step, global batches would "
        "depend on the number of workers.",
        imports=("torch", "pyarrow"),  # its threads do not survive a fork
        minutes=12.0,
        packs=True,
    ),
    Library(
        name="Megatron Energon",
        entry="exam.entries.energon",
        package="megatron-energon",
        python=_energon,
        page="https://nvidia.github.io/Megatron-Energon/basic/save_restore.html",
        promise="Deterministic save and restore at any iteration; the same global batches with "
        "other ranks while the product of ranks and workers stays the same.",
        files="*.tar",
        remark="It loops over its samples without ends of epochs, as its pages show: those in a "
        "shuffle buffer when 100 steps are over come in the next epoch, so they count as lost in "
        "one and repeated in the other where nothing is disturbed.",
        packs=True,
    ),
    Library(
        name="tf.data service",
        entry="exam.entries.tfdata",
        package="tensorflow-cpu",
        python=_tensorflow,
        page="https://www.tensorflow.org/api_docs/python/tf/data/experimental/service",
        promise="Coordinated reads give every consumer its batches in turn; a dispatcher in "
        "fault-tolerant mode recovers from restarts. Nothing about resuming a consumer.",
        files="*.tfrecord",
        stateless="a dataset that the service distributes has no state",
        minutes=11.0,  # it takes half a minute after each kill
        has_service=True,
    ),
    Library(
        name="Ray Data",
        entry="exam.entries.rays",
        package="ray",
        python=_ray,
        page="https://docs.ray.io/en/latest/data/iterating-over-data.html#splitting-datasets-for-distributed-parallel-training",
        promise="Disjoint splits for the workers of a job; nothing about resuming in mid-epoch, "
        "which Anyscale's runtime offers.",
        files="*.parquet",
        cold="s3",
        imports=("torch", "pyarrow"),  # its threads do not survive a fork
        stateless="splits have no state in open-source Ray",
        reads_s3=True,
    ),
)


def library_called(name: str) -> Library:
    """Return the library of an entry, by the last part of its module's name."""
    (found,) = (each for each in LIBRARIES if each.entry.rpartition(".")[2] == name)
    return found
