"""Set up what a stream sends: its first message, and the batches that follow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.order import OrderSpec
from headrace.server.datasets.served import Served
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.layout.packed_columns import PackedColumns
from headrace.server.layout.wire_columns import WireColumn, refuse_taken_names
from headrace.server.plan.dealing import Dealer, Ranks
from headrace.server.plan.find_samples import Finder, StepFinder
from headrace.server.plan.length_buckets import BucketFinder
from headrace.server.plan.plain_finder import PlainFinder
from headrace.server.plan.planned_batches import (
    Planned,
    PlannedBatch,
    planned_samples,
    planned_stream,
)
from headrace.server.plan.prefetch_blocks import (
    FORESEEN_SAMPLES,
    FORESEEN_WINDOWS,
    BlocksOfRuns,
)
from headrace.server.plan.skip_lists import list_message
from headrace.server.plan.steps_ahead import StepsAhead
from headrace.server.plan.stream_request import StreamSpec, greatest_rows, stream_spec
from headrace.server.plan.substitutes import Substitutes
from headrace.server.settings.transform_config import StepVersion, TransformConfig
from headrace.server.steps.pack_texts import PackTexts
from headrace.server.steps.registered import NOTHING_REGISTERED, Registered
from headrace.server.stream.get_batch_request import batch_spec, samples_spec
from headrace.server.stream.pipeline import Pipeline, make_pipeline
from headrace.server.telemetry.cache_needs import CacheNeed
from headrace.v1 import shard_service_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The contents of one stream.

    Attributes:
        title: The name of the stream in the log.
        start: The first message.
        columns: The columns of each batch, in order.
        plans: The batches and ends of epochs, planned on demand.
        max_chunk_bytes: The largest payload of one message.
        row_count: The most samples of a batch.
        shown_ids: Returns the values of the column of sample ids for given items.
        shown_samples: The same for the samples that are read; None if these are the items.
        max_group_bytes: The largest message with several batches; 0 if there may be none.
        job: Equal for streams that read the same samples at about the same time.
        pipeline: The steps that are applied to each batch; None for none.
        blocks_of_runs: See `Lookahead`.
        foreseen_samples: See `Lookahead`.
        steps: Makes `StepsAhead` from the spare bytes of the cache; None if nothing is read by
            steps of the order.
        need: What the stream needs of the cache; None if nothing is shuffled.
        packed: The columns of rows, if samples are rows of documents.
        substitutes: Replaces samples with damaged images; None if damage is an error.
    """

    title: str
    start: pb.StreamStart
    columns: tuple[WireColumn, ...]
    plans: Iterator[Planned]
    max_chunk_bytes: int
    row_count: int
    shown_ids: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    max_group_bytes: int = 0
    job: Hashable = None
    pipeline: Pipeline | None = None
    blocks_of_runs: BlocksOfRuns | None = None
    foreseen_samples: int = 0
    steps: Callable[[Callable[[], int]], StepsAhead] | None = None
    need: CacheNeed | None = None
    packed: PackedColumns | None = None
    substitutes: Substitutes | None = None
    shown_samples: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None

    @property
    def tensor_bytes(self) -> int:
        """Return the payload of a whole batch, without columns whose rows differ in size."""
        columns = self.columns if self.pipeline is None else self.pipeline.after
        return self.row_count * sum(each.item_bytes for each in columns if each.is_tensor)


def stream_contents(
    request: pb.ReadBatchesRequest, served: Served, registered: Registered = NOTHING_REGISTERED
) -> Contents:
    """Return the contents of a rank's stream.

    Raises:
        HeadraceError: See `stream_spec`.
    """
    return _contents(stream_spec(request, served, registered), served, request.steps, registered)


def batch_contents(request: pb.GetBatchRequest, served: Served, registered: Registered) -> Contents:
    """Return the contents for only the first batch of a stream.

    Raises:
        HeadraceError: See `batch_spec`.
    """
    contents = _contents(batch_spec(request, served, registered), served, request.steps, registered)
    # The first plan is always a single batch.
    return replace(
        contents,
        title=f"one of the {contents.title}",
        plans=itertools.islice(contents.plans, 1),
        need=None,
    )


def samples_contents(
    request: pb.GetSamplesRequest, served: Served, registered: Registered
) -> Contents:
    """Return the contents for samples as one batch.

    Raises:
        HeadraceError: See `samples_spec`.
    """
    del registered  # samples by id belong to no epoch, so no steps are applied to them
    spec = samples_spec(request, served)
    refuse_taken_names(spec.columns)
    start = pb.StreamStart(columns=[column.to_proto() for column in spec.columns])
    served.describe(start)
    plans: Iterator[Planned] = (
        [planned_samples(ids, served.dataset)] for ids in (spec.sample_ids,)
    )
    title = f"{spec.sample_ids.size} samples"
    return Contents(
        title,
        start,
        spec.columns,
        plans,
        spec.max_chunk_bytes,
        spec.sample_ids.size,
        served.shown_ids,
    )


def stream_start(spec: StreamSpec, served: Served, pipeline: Pipeline | None) -> pb.StreamStart:
    """Return the first message of a stream.

    Raises:
        UnsupportedColumnError: Two columns would have the same name in a batch.
    """
    columns = spec.columns if pipeline is None else pipeline.after
    refuse_taken_names(columns)
    start = pb.StreamStart(
        columns=[column.to_proto() for column in columns],
        order=_order(spec.order),
        global_batch_size=spec.global_batch_size,
        epoch=spec.epoch,
        position=spec.position,
        epoch_sample_count=served.readable.sample_count,
        skips=None if spec.skips is None else list_message(spec.skips),
        transforms=map(transform_message, spec.transforms),
        buckets=spec.buckets,
    )
    served.describe(start)
    return start


def transform_message(config: TransformConfig | StepVersion) -> pb.Transform:
    """Return the wire's description of a transform."""
    return pb.Transform(name=config.name, version=config.version)


def sample_title(shown: NDArray[np.int64]) -> str:
    """Return the name of a sample in errors, given its value in the column of sample ids."""
    *dataset, sample = shown.ravel().tolist()
    return f"sample {sample}" + (f" of the mixture's dataset {dataset[0]}" if dataset else "")


def batch_header(planned: PlannedBatch) -> pb.BatchHeader:
    """Return the header of a batch, without the fields about its payload."""
    return pb.BatchHeader(
        epoch=planned.epoch,
        step=planned.step,
        position=planned.part.position,
        sample_count=planned.sample_count,
        global_sample_count=planned.part.global_sample_count,
        pad_count=len(planned.part.pad_positions),
        resume_token=planned.token,
        substitute_count=planned.substitutes,
    )


def stream_pipeline(
    spec: StreamSpec,
    served: Served,
    steps: Sequence[pb.BatchStep],
    registered: Registered,
) -> Pipeline | None:
    """Return the steps of a stream; None if there are none.

    Raises:
        HeadraceError: See `make_pipeline`.
    """
    packed = served.packed
    texts = None
    if packed is not None and packed.texts is not None:
        tokenizer = registered.tokenizers.of_lengths(packed.tokenizer, dataset=served.name)
        texts = (
            packed.texts,
            PackTexts(
                packed,
                spec.columns,
                tokenizer,
                title=lambda sample: sample_title(served.shown_samples(np.array([sample]))),
                shown_ids=served.shown_ids,
            ),
        )
    elif not steps:
        return None
    return make_pipeline(
        steps,
        spec.columns,
        row_count=greatest_rows(spec, served.readable),
        seed=spec.order.seed,
        registered=registered,
        max_batch_bytes=served.readable.max_batch_bytes,
        class_counts=served.readable.class_counts,
        texts=texts,
    )


def stream_finder(spec: StreamSpec, served: Served) -> Finder:
    """Return the finder of a stream's samples by position.

    Raises:
        HeadraceError: See `Served.bucket_finder`.
    """
    if spec.buckets:
        assert isinstance(served, ServedDataset)
        return served.bucket_finder(spec.order, spec.skips, spec.buckets)
    return served.finder(spec.order, spec.skips)


def stream_dealer(spec: StreamSpec, served: Served, finder: Finder) -> Dealer | None:
    """Return the dealer of samples to ranks; None if they are dealt in order.

    Raises:
        HeadraceError: See `Served.dealer`.
    """
    if spec.deal is None:
        return None
    ranks = Ranks(spec.global_batch_size, spec.world_size, spec.replication, spec.end)
    return served.dealer(spec.deal, spec.order, ranks, finder)


def _contents(
    spec: StreamSpec,
    served: Served,
    steps: Sequence[pb.BatchStep],
    registered: Registered,
) -> Contents:
    finder = stream_finder(spec, served)
    # Buckets are made from what the order brings together.
    ordered = finder.ordered if isinstance(finder, BucketFinder) else finder
    plans = planned_stream(
        spec, finder, tally=served.tally, dealer=stream_dealer(spec, served, finder)
    )
    title = f"batches for rank {spec.rank} of {spec.world_size}"
    pipeline = stream_pipeline(spec, served, steps, registered)
    start = stream_start(spec, served, pipeline)
    # Texts are gathered like samples, and become rows afterwards.
    texts = None if pipeline is None or pipeline.texts is None else pipeline.before
    job = (
        *(served.readable.fingerprint, spec.mixture, spec.order),
        *(spec.skips_digest, spec.kept, spec.buckets),
    )
    return Contents(
        title,
        start,
        texts or spec.columns,
        plans,
        spec.max_chunk_bytes,
        greatest_rows(spec, served.readable) * served.samples_an_item,
        served.shown_ids,
        max_group_bytes=spec.max_group_bytes,
        job=job,
        pipeline=pipeline,
        blocks_of_runs=finder.blocks_of_runs,
        foreseen_samples=_foreseen_samples(spec, served, ordered),
        steps=(
            _steps_ahead(spec, ordered)
            if isinstance(ordered, StepFinder) and ordered.has_steps
            else None
        ),
        need=CacheNeed(job, _lanes(spec), finder.lane_bytes) if finder.lane_bytes else None,
        packed=None if texts else served.packed,
        substitutes=_substitutes(steps, ordered, served),
        shown_samples=served.shown_samples,
    )


def _substitutes(
    steps: Sequence[pb.BatchStep], finder: Finder, served: Served
) -> Substitutes | None:
    columns = sorted(
        step.decode_image.column for step in steps if step.decode_image.on_error == pb.ON_ERROR_SKIP
    )
    if not columns or not isinstance(finder, PlainFinder | StepFinder):
        return None
    return Substitutes(finder, "\n".join(columns).encode(), title=served.name)


def _foreseen_samples(spec: StreamSpec, served: Served, finder: Finder) -> int:
    foreseen = FORESEEN_SAMPLES
    if isinstance(finder, StepFinder) and finder.has_steps:
        together = spec.order.lanes * finder.lane_bytes // finder.sample_bytes
        foreseen = min(foreseen, round(FORESEEN_WINDOWS * together))
    # The streams of a job look this far ahead together.
    return foreseen // (spec.world_size * spec.batch_stride * served.samples_an_item)


def _steps_ahead(spec: StreamSpec, finder: StepFinder) -> Callable[[Callable[[], int]], StepsAhead]:
    lanes = _lanes(spec)
    last_epoch = spec.epoch + spec.epoch_count - 1 if spec.epoch_count else None

    def make(spare_bytes: Callable[[], int]) -> StepsAhead:
        return StepsAhead(
            finder,
            lanes,
            last_epoch=last_epoch,
            spare_samples=lambda: spare_bytes() // (finder.sample_bytes * len(lanes)),
        )

    return make


def _lanes(spec: StreamSpec) -> range:
    """Return the lanes that a rank reads: those in its part of a batch, if a batch is a unit."""
    lanes, parts = spec.order.lanes, spec.world_size // spec.replication
    if spec.order.unit != spec.global_batch_size:
        return range(lanes)
    part = spec.rank // spec.replication
    return range(part * lanes // parts, -(-(part + 1) * lanes // parts))


def _order(spec: OrderSpec) -> pb.OrderSpec:
    return pb.OrderSpec(
        version=spec.version,
        seed=spec.seed,
        shuffle=spec.shuffle,
        run_bytes=spec.run_bytes,
        shuffle_bytes=spec.shuffle_bytes,
        shuffle_samples=spec.shuffle_samples,
        lanes=spec.lanes,
        unit=spec.unit,
    )
