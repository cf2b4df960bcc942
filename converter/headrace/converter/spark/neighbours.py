"""Let one task of Spark take several small neighbouring partitions, in their order.

A task costs tens of milliseconds whatever it does, so 10,000 partitions of some rows each cost
minutes. Contract of `by_neighbours`:

1. Order: a task has partitions that stand side by side, and the tasks have them in the order of
   the partitions; so samples keep the order that they would have had.
2. The groups follow from the number of partitions and from the size that Spark estimates, and
   neither from where partitions lie nor from the machines; so the same rows make the same shards.
   `DataFrame.coalesce` is left alone for that: where partitions are cached, or lie on hosts that
   Spark knows, it groups them by host (`DefaultPartitionCoalescer`).
3. Where this cannot be had, the rows come back as they are, and cost what they cost: in Spark
   Connect, which shows no plan; where Spark cannot tell the size; where a session keeps Python
   out of its JVM; where there are few partitions.
4. It runs in the thread of the job: rows behind a shuffle are shuffled here, once.

How: Spark's `RDD.coalesce` asks a `PartitionCoalescer`, a class of the JVM. There is none in Spark
that keeps neighbours together, and a jar of ours would have to be installed; so a class of a few
lines is compiled in the driver, by the compiler that Spark makes its own queries with. Executors
never see it: it is asked in the driver alone, and writes a string in its place into tasks.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # py4j has no stubs
from pyspark.sql import DataFrame

LEAST_TASKS = 256
"""Tasks that are never made fewer: two for each core of 128, and seconds if there are two cores."""

_MOST_BYTES = 1 << 62  # Spark says 2**63 - 1 where it does not know

_CLASS = "headrace.Neighbours"
_SOURCE = """
package headrace;

public final class Neighbours
    implements org.apache.spark.rdd.PartitionCoalescer, java.io.Serializable {

  public org.apache.spark.rdd.PartitionGroup[] coalesce(
      int count, org.apache.spark.rdd.RDD parent) {
    org.apache.spark.Partition[] all = parent.partitions();
    org.apache.spark.rdd.PartitionGroup[] groups =
        new org.apache.spark.rdd.PartitionGroup[count];
    for (int at = 0; at < count; at++) {
      groups[at] = new org.apache.spark.rdd.PartitionGroup(scala.Option.apply(null));
      int end = (int) ((at + 1L) * all.length / count);
      for (int place = (int) ((long) at * all.length / count); place < end; place++) {
        groups[at].partitions().$plus$eq(all[place]);
      }
    }
    return groups;
  }

  public Object writeReplace() {
    return "neighbours, which the driver has grouped";
  }
}
"""

_log = logging.getLogger("headrace.converter")


def by_neighbours(rows: DataFrame, *, task_bytes: int, least_tasks: int = LEAST_TASKS) -> DataFrame:
    """Return the same rows in fewer partitions, where there are many small ones.

    Args:
        rows: The rows of a classic session; not to be used any more where others come back.
        task_bytes: That a task may have, by Spark's estimate.
        least_tasks: Tasks that there are to be, if there are as many partitions.
    """
    try:
        count = groups_of(
            _partitions_planned(rows),
            _estimated_bytes(rows),
            task_bytes=task_bytes,
            least_tasks=least_tasks,
        )
    except _UNUSUAL as error:
        _log.debug("partitions stay as they are: %s", error)
        return rows
    return rows if count is None else _grouped(rows, count)


def groups_of(
    partitions: int, estimated_bytes: int, *, task_bytes: int, least_tasks: int = LEAST_TASKS
) -> int | None:
    """Return how many groups partitions are to make, or `None` if they stay as they are.

    Args:
        partitions: How many there are.
        estimated_bytes: The estimated size of all of them.
        task_bytes: That a group may have, about.
        least_tasks: Groups that there are to be.
    """
    if not 0 <= estimated_bytes < _MOST_BYTES:
        return None
    count = max(least_tasks, -(-estimated_bytes // task_bytes))
    return count if partitions >= 2 * count else None


_UNUSUAL = (Py4JError, AttributeError, TypeError, ValueError)
"""What is raised where a session is not as ours are: a JVM out of reach, other internals."""


def _estimated_bytes(rows: DataFrame) -> int:
    plan = _execution(rows).optimizedPlan()
    return int(str(plan.stats().sizeInBytes()))


def _partitions_planned(rows: DataFrame) -> int:
    """Return how many partitions there will be, if that is known before a shuffle."""
    plan = _execution(rows).executedPlan()
    if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return int(plan.initialPlan().outputPartitioning().numPartitions())
    planned = int(plan.outputPartitioning().numPartitions())
    return planned or int(_execution(rows).toRdd().getNumPartitions())


def _execution(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution()  # noqa: SLF001 - Spark's only way to a plan


def _grouped(rows: DataFrame, count: int) -> DataFrame:
    session: Any = rows.sparkSession  # of what is private the stubs say little
    try:
        coalescer = _coalescer(session)
        make = session._jsparkSession.internalCreateDataFrame  # noqa: SLF001 - as above
        schema = rows._jdf.schema()  # noqa: SLF001 - as above
        scala = session._jvm.scala  # noqa: SLF001 - as above
    except _UNUSUAL as error:
        _log.debug("partitions stay as they are: %s", error)
        return rows
    rdd = _execution(rows).toRdd()  # shuffles, where there is a shuffle
    # After a shuffle there may be fewer partitions than planned: adaptive execution joins them.
    count = min(count, int(rdd.getNumPartitions()))
    grouped = rdd.coalesce(count, False, scala.Option.apply(coalescer), None)
    return DataFrame(make(grouped, schema, False), session)


def _coalescer(session: Any) -> Any:
    jvm = session._jvm  # noqa: SLF001 - as above
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    found = compiler.getClassLoader().loadClass(_CLASS)
    gateway = session.sparkContext._gateway  # noqa: SLF001 - as above
    return found.getConstructors()[0].newInstance(gateway.new_array(jvm.java.lang.Object, 0))
