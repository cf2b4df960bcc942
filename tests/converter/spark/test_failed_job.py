"""What is said of a Spark job that failed by no error of ours."""

from __future__ import annotations

from headrace.converter.spark.job import _ours

_SAID = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4207, in invoke_udf
    func, profiler, deserializer, serializer = read_udfs(
                                               ^^^^^^^^^^
KeyError: 'seed'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "job.py", line 7, in shorten
    raise ValueError("no seventeen")
ValueError: no seventeen
which has a second line

JVM stacktrace:
org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
"""


def test_the_error_is_the_one_that_a_task_raised() -> None:
    """The calls that led to it, and those of the JVM, are in Spark's log."""
    assert (
        "the Spark job failed, and no dataset was written: ValueError: no seventeen\n"
        "which has a second line; Spark's log has the whole traceback"
    ) == _ours(_SAID).message


def test_a_failure_outside_of_python_is_told_in_sparks_words() -> None:
    """A lost executor leaves no traceback."""
    message = _ours("  Job aborted due to stage failure: ExecutorLostFailure\n").message

    assert "no dataset was written: Job aborted due to stage failure: ExecutorLost" in message
