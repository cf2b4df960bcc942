"""Let one Spark task process several small neighbouring partitions, in order.

A task costs tens of milliseconds whatever it does, so 10,000 partitions of a few rows cost minutes.
Contract of `by_neighbours`:

1. Order: a task gets adjacent partitions, and tasks follow the order of partitions, so samples keep
   their order.
2. The groups depend only on the number of partitions and on the size that Spark estimates, not on
   the location of partitions or on machines, so the same rows make the same shards.
   `DataFrame.coalesce` is not used for that reason: it groups partitions by host
   (`DefaultPartitionCoalescer`) if they are cached or Spark knows their hosts.
3. Otherwise the rows are returned unchanged: in Spark Connect, which shows no plan; if Spark does
   not know the size; if a session does not let Python access its JVM; and if there are few
   partitions.
4. It runs in the thread of the job: rows after a shuffle are shuffled here, once.

How: Spark's `RDD.coalesce` asks a `PartitionCoalescer`, a class of the JVM. Spark has none that
keeps neighbours together, and our own jar would have to be installed; so a class of a few lines is
compiled in the driver, with the compiler that Spark uses for its own queries. Executors never see
it: only the driver calls it, and it replaces itself by a string in tasks.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # py4j has no stubs
from pyspark.sql import DataFrame

LEAST_TASKS = 256
"""The minimum number of tasks: two per core for 128 cores, and seconds for two cores."""

_MOST_BYTES = 1 << 62  # Spark reports 2**63 - 1 if it does not know

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
    """Return the same rows in fewer partitions, if there are many small ones.

    Args:
        rows: The rows of a classic session; not to be used any more if others are returned.
        task_bytes: The most bytes of a task, by Spark's estimate.
        least_tasks: The minimum number of tasks, if there are as many partitions.
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
    """Return the number of groups of partitions, or `None` to keep partitions unchanged.

    Args:
        partitions: The number of partitions.
        estimated_bytes: The estimated size of all partitions.
        task_bytes: The approximate size of a group.
        least_tasks: The minimum number of groups.
    """
    if not 0 <= estimated_bytes < _MOST_BYTES:
        return None
    count = max(least_tasks, -(-estimated_bytes // task_bytes))
    return count if partitions >= 2 * count else None


_UNUSUAL = (Py4JError, AttributeError, TypeError, ValueError)
"""The errors of unusual sessions: an inaccessible JVM, other internals."""


def _estimated_bytes(rows: DataFrame) -> int:
    plan = _execution(rows).optimizedPlan()
    return int(str(plan.stats().sizeInBytes()))


def _partitions_planned(rows: DataFrame) -> int:
    """Return the number of partitions, if it is known before a shuffle."""
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
