"""What is said of a Spark job that failed by no error of ours."""

from __future__ import annotations

import pytest

from headrace.converter.spark.job import _explained
from headrace.converter.tasks.failure import error_in, packed_for_driver
from headrace.errors import BadArgumentError, StoreUnavailableError

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


def _fail() -> None:
    raise BadArgumentError("column 'label': 'cat' is no int64", field="label")


def test_values_that_cannot_be_stored_do_not_fail_a_task() -> None:
    """Spark would log 80 lines of Java, and try again with the same values."""
    told: list[str] = []
    with packed_for_driver(told.append):
        _fail()
    found = error_in(told[0])

    assert isinstance(found, BadArgumentError)
    assert ("column 'label': 'cat' is no int64", "label") == (
        found.message,
        found.metadata["field"],
    )


@pytest.mark.parametrize(
    "error",
    [StoreUnavailableError("away"), BadArgumentError("the function raised", field="function")],
)
def test_what_may_pass_or_is_not_ours_fails_a_task(error: Exception) -> None:
    """Spark tries again elsewhere, and its log has a function's traceback."""
    told: list[str] = []
    with pytest.raises(type(error)), packed_for_driver(told.append):
        raise error

    assert not told


def test_the_error_is_the_one_that_a_task_raised() -> None:
    """The calls that led to it, and those of the JVM, are in Spark's log."""
    assert (
        "the Spark job failed, and no dataset was written: ValueError: no seventeen\n"
        "which has a second line; Spark's log has the whole traceback"
    ) == _explained(_SAID)


def test_a_failure_outside_of_python_is_told_in_sparks_words() -> None:
    """A lost executor leaves no traceback."""
    message = _explained("  Job aborted due to stage failure: ExecutorLostFailure\n")

    assert "no dataset was written: Job aborted due to stage failure: ExecutorLost" in message
