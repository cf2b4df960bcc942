"""Run a Spark job, watch it, and turn its failure into one of our errors.

With classic Spark the job runs in its own thread; with Spark Connect in the caller's, since its
client reports progress and accepts cancellation while it waits.

Contract of `run_job`:

1. Success: the rows of all partitions, each partition once.
2. Failure: the error that a task raised, unchanged if it is one of ours, or that it told through
   the job's counters, which ends the other tasks.
3. Cancel: an interrupt of the caller cancels the job and continues.
4. After 2 and 3 no task of the job runs any more, as far as Spark can tell within a minute: for its
   driver, a failed or cancelled job is over while its tasks are still writing.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # py4j has no stubs
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException

from headrace.converter.progress.progress import Progress
from headrace.converter.tasks.failure import error_in, says_all
from headrace.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext, SparkStageInfo
    from pyspark.sql import DataFrame, Row

_POLL_S = 0.2  # arbitrary: often enough for a progress bar
_CANCEL_S = 60.0
_FLUSH_S = 1.0  # Spark's counts of running tasks may be this old (spark.ui.liveUpdate.*)
_MAX_CAUSE = 600  # characters of Spark's own message in an error
_JVM = "JVM stacktrace:"
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counters:
    """What tasks tell the driver. Picklable: a task can only add.

    Attributes:
        shards: Finished shards.
        samples: Their samples.
        raw_bytes: Their raw bytes.
        failure: The first error that a task told, packed; empty for none.
    """

    shards: Accumulator[int]
    samples: Accumulator[int]
    raw_bytes: Accumulator[int]
    failure: Accumulator[str]

    def __call__(self, samples: int, raw_bytes: int) -> None:
        """Count a finished shard."""
        self.shards.add(1)
        self.samples.add(samples)
        self.raw_bytes.add(raw_bytes)


class _First(AccumulatorParam[str]):
    """Keeps the first text."""

    def zero(self, value: str) -> str:  # noqa: ARG002 - as Spark calls it
        return ""

    def addInPlace(self, value1: str, value2: str) -> str:  # noqa: N802 - as Spark calls it
        return value1 or value2


def context_of(df: DataFrame) -> SparkContext | None:
    """Return the context of a classic session, or None for Spark Connect."""
    try:
        return df.sparkSession.sparkContext
    except (AttributeError, PySparkException):
        return None


def make_counters(context: SparkContext | None) -> Counters | None:
    """Return counters if there is a context for them."""
    if context is None:
        return None
    shards, samples, raw_bytes = (context.accumulator(0) for _ in range(3))
    return Counters(shards, samples, raw_bytes, context.accumulator("", _First()))


def run_job(
    df: DataFrame,
    *,
    made: Callable[[DataFrame], DataFrame] | None = None,
    properties: Mapping[str, str] | None = None,
    counters: Counters | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Row]:
    """Collect ``df``.

    Args:
        df: A DataFrame that is small when collected: one row per shard, with its ``partition``.
        made: Makes what is collected of ``df``, in the thread of the job, since Spark may run a
            part of the job for it.
        properties: Spark settings for this job only, unless the session has set them; not for
            Connect, which has none.
        counters: What the job's tasks tell.
        progress: Called in the caller's thread a few times a second.

    Raises:
        HeadraceError: A task raised it, or Spark failed.
    """
    context = context_of(df)
    if context is None:
        return _run_connected(df, made or _same, progress)
    job = _Job(partial(made or _same, df), context, properties or {})
    job.start()
    try:
        while not job.wait(_POLL_S):
            _raise_told(counters)
            if progress is not None:
                progress(_progress_of(context, job.group, counters))
        _raise_told(counters)
        rows = job.result()
    except BaseException:
        job.end()
        raise
    if progress is not None:
        progress(_progress_of(context, job.group, counters))
    return rows


class _Job:
    """A collect in its own thread, so that the caller can watch and cancel it."""

    def __init__(
        self,
        make: Callable[[], DataFrame],
        context: SparkContext,
        properties: Mapping[str, str],
    ) -> None:
        self.group = f"headrace-{uuid.uuid4().hex}"
        self._make = make
        self._context = context
        self._properties = properties
        self._rows: list[Row] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-spark-job", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def end(self) -> None:
        """Cancel running tasks, and wait until they have ended."""
        deadline = time.monotonic() + _CANCEL_S
        if self._thread.is_alive():
            self._context.cancelJobGroup(self.group)
        self._thread.join(_CANCEL_S)
        time.sleep(_FLUSH_S)
        while _running_tasks(self._context, self.group) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def result(self) -> list[Row]:
        if self._error is not None:
            raise self._error
        return self._rows

    def _run(self) -> None:
        try:
            # Group and properties belong to the thread that starts the job, which ends with it.
            self._context.setJobGroup(self.group, "headrace: write shards", interruptOnCancel=True)
            for key, text in self._properties.items():
                self._context.setLocalProperty(key, text)
            self._rows = _collect(self._make)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._error = error


def _same(df: DataFrame) -> DataFrame:
    return df


def _raise_told(counters: Counters | None) -> None:
    told = error_in(counters.failure.value) if counters else None
    if told is not None:
        raise told


def _collect(make: Callable[[], DataFrame]) -> list[Row]:
    try:
        return make().collect()
    except (PySparkException, Py4JJavaError) as error:
        found = error_in(str(error))
        missing = None if found is not None else _MISSING.search(str(error))
        if missing is not None:
            raise _lacks(missing[1]) from None
        if found is not None and says_all(found):
            # Not from Spark's, with its calls of the JVM.
            raise found from None
        raise found or ConfigurationError(_explained(str(error))) from error


def _run_connected(
    df: DataFrame,
    made: Callable[[DataFrame], DataFrame],
    progress: Callable[[Progress], None] | None,
) -> list[Row]:
    """Collect in Spark Connect, where a job is cancelled by its tag."""
    session: Any = df.sparkSession  # the class of Connect, whose stubs say less than it has
    tag = f"headrace-{uuid.uuid4().hex}"

    tasks_known = 0

    def tell(stages: Iterable[Any], **_: object) -> None:
        nonlocal tasks_known
        known = list(stages)
        tasks_known = sum(stage.num_tasks for stage in known)
        if progress is not None:
            done = sum(stage.num_completed_tasks for stage in known)
            progress(Progress(done, tasks_known, 0, 0, 0))

    # Spark 3.5 has no such handlers.
    watched = progress is not None and hasattr(session, "registerProgressHandler")
    session.addTag(tag)
    if watched:
        session.registerProgressHandler(tell)
    try:
        rows = _collect(partial(made, df))
    except BaseException:
        session.interruptTag(tag)
        raise
    finally:
        session.removeTag(tag)
        if watched:
            session.removeProgressHandler(tell)
    if progress is not None:
        # The server reports every few seconds, so it may not have reported a short job yet.
        tasks = max(tasks_known, len({row["partition"] for row in rows}))
        progress(Progress(tasks, tasks, len(rows), 0, 0))
    return rows


def _lacks(module: str) -> ConfigurationError:
    return ConfigurationError(
        f"no dataset was written, because the Python of Spark's workers cannot import {module}; "
        f"they run {os.environ.get('PYSPARK_PYTHON', 'python3')}, and this driver runs "
        f"{sys.executable}. Set the environment variable PYSPARK_PYTHON to a Python that has "
        f"{module} before the session starts, or install it there"
    )


def _explained(text: str) -> str:
    """Explain why a job failed, from Spark's message."""
    # The exception comes after the Python calls that led to it, and is followed by calls of the
    # JVM.
    _, _, raised = text.partition(_JVM)[0].rpartition("Traceback (most recent call last):\n")
    lines = [line for line in raised.splitlines() if line[:1].strip()]
    cause = "\n".join(lines) if "Traceback" in text and lines else text.strip()
    return (
        f"the Spark job failed, and no dataset was written: {cause[:_MAX_CAUSE]}; Spark's log has "
        "the whole traceback"
    )


def _stages_of(context: SparkContext, group: str) -> list[SparkStageInfo]:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return [stage for stage in stages if stage]


def _running_tasks(context: SparkContext, group: str) -> int:
    return sum(stage.numActiveTasks for stage in _stages_of(context, group))


def _progress_of(context: SparkContext, group: str, counters: Counters | None) -> Progress:
    stages = _stages_of(context, group)
    return Progress(
        tasks_done=sum(stage.numCompletedTasks for stage in stages),
        tasks_total=sum(stage.numTasks for stage in stages),
        shard_count=counters.shards.value if counters else 0,
        sample_count=counters.samples.value if counters else 0,
        raw_bytes=counters.raw_bytes.value if counters else 0,
    )
