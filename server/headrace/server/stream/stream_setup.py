"""Set up what a stream sends: its first message, and the batches that follow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from google.protobuf.any_pb2 import Any
from numpy.typing import NDArray

from headrace.server.batch.batch_writer import BatchWriter
from headrace.server.batch.compiled_writer import sample_writer
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.needs import CacheNeed
from headrace.server.cache.readers import Blocks
from headrace.server.datasets.served import Served
from headrace.server.layout.block_layout import BlockLayout
from headrace.server.layout.wire_columns import WireColumn, refuse_taken_names
from headrace.server.plan.find_samples import Finder
from headrace.server.plan.planned_batches import (
    Planned,
    PlannedBatch,
    planned_samples,
    planned_stream,
)
from headrace.server.plan.prefetch_blocks import (
    BY_PLANS,
    FORESEEN_SAMPLES,
    FORESEEN_WINDOWS,
    ReadAhead,
)
from headrace.server.plan.ranks import Dealing, Ranks
from headrace.server.plan.steps_ahead import Ahead, Steps, StepsAhead
from headrace.server.plan.stream_request import (
    ReadRequest,
    StreamSpec,
    greatest_rows,
    stream_spec,
)
from headrace.server.plan.substitutes import Substitutes
from headrace.server.plan.window_finder import WindowFinder
from headrace.server.plan.windows_ahead import WindowsAhead
from headrace.server.stream.get_batch_request import batch_spec, samples_spec
from headrace.server.stream.pipeline import Pipeline, make_pipeline
from headrace.server.stream.stage_plugs import NO_STAGES, Stages
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
        blocks: Returns the blocks that hold its samples, of a cache.
        is_cuttable: Whether it reads whole blocks, and should be opened again, to read windows,
            when its job is short of memory.
        max_group_bytes: The largest message with several batches; 0 if there may be none.
        job: Equal for streams that read the same samples at about the same time.
        pipeline: The stages that are applied to each batch; None for none.
        read_ahead: How it reads ahead of need.
        need: What the stream needs of the cache; None if nothing is shuffled.
        rank: Whose batches they are; None for a single batch.
        writer: Returns what writes its batches, of blocks of a layout.
    """

    title: str
    start: pb.StreamStart
    columns: tuple[WireColumn, ...]
    plans: Iterator[Planned]
    max_chunk_bytes: int
    row_count: int
    shown_ids: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    blocks: Callable[[BlockCache], Blocks]
    writer: Callable[[BlockLayout], BatchWriter]
    is_cuttable: bool = False
    max_group_bytes: int = 0
    job: Hashable = None
    pipeline: Pipeline | None = None
    read_ahead: ReadAhead = BY_PLANS
    need: CacheNeed | None = None
    rank: int | None = None

    @property
    def tensor_bytes(self) -> int:
        """Return the payload of a whole batch, without columns whose rows differ in size."""
        columns = self.columns if self.pipeline is None else self.pipeline.after
        return self.row_count * sum(each.item_bytes for each in columns if each.is_tensor)


def stream_contents(request: ReadRequest, served: Served, stages: Stages = NO_STAGES) -> Contents:
    """Return the contents of a rank's stream.

    Raises:
        HeadraceError: See `Stages.reading` and `stream_spec`.
    """
    served = stages.reading(request, served)
    spec = stream_spec(request, served.readable, stages)
    contents = _contents(spec, served, request.stages, stages, may_be_cut=True)
    return replace(contents, rank=spec.rank)


def batch_contents(request: ReadRequest, served: Served, stages: Stages) -> Contents:
    """Return the contents for only the first batch of a stream.

    Raises:
        HeadraceError: See `Stages.reading` and `batch_spec`.
    """
    served = stages.reading(request, served)
    contents = _contents(batch_spec(request, served, stages), served, request.stages, stages)
    # The first plan is always a single batch.
    return replace(
        contents,
        title=f"one of the {contents.title}",
        plans=itertools.islice(contents.plans, 1),
        need=None,
    )


def samples_contents(
    request: pb.GetSamplesRequest, read: ReadRequest, served: Served, stages: Stages
) -> Contents:
    """Return the contents for samples as one batch.

    Raises:
        HeadraceError: See `samples_spec`.
    """
    del read, stages  # samples by id belong to no epoch, so no stages are applied to them
    spec = samples_spec(request, served)
    refuse_taken_names(spec.columns)
    start = pb.StreamStart(columns=[column.to_proto() for column in spec.columns])
    served.describe(start)
    plans: Iterator[Planned] = (
        ([planned_samples(ids, served.dataset)], None) for ids in (spec.sample_ids,)
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
        served.blocks,
        sample_writer(spec.columns),
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
        order=pb.OrderSpec(**asdict(spec.order)),
        global_batch_size=spec.global_batch_size,
        epoch=spec.epoch,
        position=spec.position,
        epoch_sample_count=served.readable.sample_count,
    )
    served.describe(start)
    return start


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
    spec: StreamSpec, served: Served, messages: Sequence[Any], stages: Stages
) -> Pipeline | None:
    """Return the stages of a stream; None if there are none.

    Raises:
        HeadraceError: See `make_pipeline`.
    """
    first, asked = stages.first(served, spec.columns), stages.asked(messages)
    if first is None and not asked:
        return None
    return make_pipeline(
        asked,
        spec.columns,
        row_count=greatest_rows(spec, served.readable),
        seed=spec.order.seed,
        max_batch_bytes=served.readable.max_batch_bytes,
        class_counts=served.readable.class_counts,
        first=first,
    )


def stream_dealing(spec: StreamSpec, served: Served, finder: Finder) -> Dealing | None:
    """Return what deals samples to ranks; None if they are dealt in order."""
    ranks = Ranks(spec.global_batch_size, spec.world_size, spec.end)
    return served.dealing(spec.order, ranks, finder)


def _contents(
    spec: StreamSpec,
    served: Served,
    messages: Sequence[Any],
    stages: Stages,
    *,
    may_be_cut: bool = False,
) -> Contents:
    finder = served.finder(spec.order)
    job = served.name, served.readable.fingerprint, spec.order, spec.stages
    need = _need(job, spec, served, finder) if finder.lane_bytes else None
    # Buckets are made from what the order brings together.
    ordered = finder.ordered
    windowed, blocks, is_cuttable = _cut(spec, served, finder, need if may_be_cut else None)
    finder = finder if windowed is None else windowed
    dealing = stream_dealing(spec, served, finder)
    rows = greatest_rows(spec, served.readable)
    if dealing is not None:
        rows = dealing.most_rows(spec.rank, rows)
    title = f"batches for rank {spec.rank} of {spec.world_size}"
    pipeline = stream_pipeline(spec, served, messages, stages)
    if pipeline is not None:
        pipeline = replace(pipeline, substitutes=_substitutes(pipeline, ordered, served))
    accompany = None if pipeline is None else pipeline.accompany
    plans = planned_stream(spec, finder, tally=served.tally, dealing=dealing, accompany=accompany)
    start = stream_start(spec, served, pipeline)
    # Texts are gathered like samples, and become rows afterwards.
    texts = pipeline.before if pipeline is not None and pipeline.is_as_stored else None
    return Contents(
        title,
        start,
        texts or spec.columns,
        plans,
        spec.max_chunk_bytes,
        rows * served.samples_an_item,
        served.shown_ids,
        blocks,
        sample_writer(texts) if texts else served.writer(spec.columns),
        is_cuttable=is_cuttable,
        max_group_bytes=spec.max_group_bytes,
        job=job,
        pipeline=pipeline,
        read_ahead=ReadAhead(
            finder.blocks_of_runs,
            _foreseen_samples(spec, served, ordered),
            _ahead(spec, served, finder, windowed),
            _most_ahead(spec, windowed),
        ),
        need=need,
    )


def _cut(
    spec: StreamSpec, served: Served, finder: Finder, need: CacheNeed | None
) -> tuple[WindowFinder | None, Callable[[BlockCache], Blocks], bool]:
    """Return what reads windows, how to read blocks, and whether windows can be read later."""
    if need is None:
        return None, served.blocks, False
    windows = served.windows
    if windows.needs.would_fit(need):
        return None, served.blocks, True
    windowed = windows.finder(
        finder,
        need,
        lanes=spec.order.lanes,
        together=_together(spec, served, finder),
        batch=spec.global_batch_size,
    )
    return windowed, lambda cache: windows.blocks(served.blocks(cache)), False


def _together(spec: StreamSpec, served: Served, finder: Finder) -> int:
    """Return how many positions are shuffled together, in all lanes."""
    sample_bytes = max(1, served.epoch_bytes // max(1, finder.sample_count))
    return spec.order.lanes * finder.lane_bytes // sample_bytes


def _most_ahead(spec: StreamSpec, windowed: WindowFinder | None) -> Callable[[], int]:
    if windowed is None:
        return lambda: FORESEEN_SAMPLES
    return lambda: windowed.ahead // (spec.world_size * spec.batch_stride)


def _ahead(
    spec: StreamSpec, served: Served, finder: Finder, windowed: WindowFinder | None
) -> Callable[[Callable[[], int]], Ahead] | None:
    """Return what makes the `Ahead` of a stream; None for none."""
    found = finder.steps
    steps = None if found is None else _steps_ahead(spec, found, served, finder.sample_count)
    # Windows hold the samples of all lanes.
    if windowed is None or len(_lanes(spec)) < spec.order.lanes:
        return steps
    last_epoch = _last_epoch(spec)
    return lambda spare_bytes: WindowsAhead(
        windowed, None if steps is None else steps(spare_bytes), last_epoch=last_epoch
    )


def _last_epoch(spec: StreamSpec) -> int | None:
    return spec.epoch + spec.epoch_count - 1 if spec.epoch_count else None


def _need(job: Hashable, spec: StreamSpec, served: Served, finder: Finder) -> CacheNeed:
    share = served.memory_bytes / max(1, served.raw_bytes)
    return CacheNeed(
        job,
        _lanes(spec),
        int(finder.lane_bytes * share),
        # Under two names, the same data lies in memory twice.
        (served.name, served.dataset.fingerprint),
        served.memory_bytes,
    )


def _substitutes(pipeline: Pipeline, finder: Finder, served: Served) -> Substitutes | None:
    replacement = pipeline.replacement
    if replacement is None or finder.replacing is None:
        return None
    return Substitutes(finder.replacing, replacement, title=served.name)


def _foreseen_samples(spec: StreamSpec, served: Served, finder: Finder) -> int:
    foreseen = FORESEEN_SAMPLES
    if finder.steps is not None:
        foreseen = min(foreseen, round(FORESEEN_WINDOWS * _together(spec, served, finder)))
    # The streams of a job look this far ahead together.
    return foreseen // (spec.world_size * spec.batch_stride * served.samples_an_item)


def _steps_ahead(
    spec: StreamSpec, steps: Steps, served: Served, sample_count: int
) -> Callable[[Callable[[], int]], StepsAhead]:
    lanes = _lanes(spec)
    sample_bytes = max(1, served.memory_bytes // max(1, sample_count))
    last_epoch = _last_epoch(spec)

    def make(spare_bytes: Callable[[], int]) -> StepsAhead:
        return StepsAhead(
            steps,
            lanes,
            last_epoch=last_epoch,
            spare_samples=lambda: spare_bytes() // (sample_bytes * len(lanes)),
        )

    return make


def _lanes(spec: StreamSpec) -> range:
    """Return the lanes that a rank reads: those in its part of a batch, if a batch is a unit."""
    lanes, rank, world_size = spec.order.lanes, spec.rank, spec.world_size
    if spec.order.unit != spec.global_batch_size:
        return range(lanes)
    return range(rank * lanes // world_size, -(-(rank + 1) * lanes // world_size))
