"""Start the Spark session of a command, and make DataFrames from files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def start_spark(master: str, *, verbose: bool) -> SparkSession:
    """Start a session.

    Args:
        master: Spark's master URL, such as ``local[*]``.
        verbose: Whether to show Spark's own log.

    Raises:
        ConfigurationError: There is no Java that Spark supports.
    """
    from headrace.converter.spark_java import provide_java  # noqa: PLC0415 - needs [converter]

    java = provide_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    # Workers need the packages of this interpreter, and a local session must not listen on the
    # machine's external address.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.appName("headrace convert")
        .master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    if verbose:
        return builder.getOrCreate()
    if java.note:
        click.echo(f"{java.note}.", err=True)  # the messages of the JVM are not shown
    with _silent_stderr():
        return builder.config("spark.log.level", "ERROR").getOrCreate()


@contextmanager
def _silent_stderr() -> Iterator[None]:
    # The JVM inherits the descriptor when it starts, and logs before a session exists whose log
    # level could be set. Exceptions report what matters.
    sys.stderr.flush()
    stderr = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)


def read_frame(spark: SparkSession, source: str, *, file_format: str) -> DataFrame:
    """Make a DataFrame of files.

    Raises:
        BadArgumentError: Spark cannot read them.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        # Spark looks for relative paths in Hadoop's default file system.
        return spark.read.format(file_format).load(_absolute(source))
    except (PySparkException, Py4JJavaError) as error:
        raise BadArgumentError(_reason(source, file_format, str(error)), field="SRC") from error


def _reason(source: str, file_format: str, text: str) -> str:
    found = re.search(r"No FileSystem for scheme|ClassNotFoundException: .*FileSystem", text)
    if found is None:
        return f"Spark cannot read {source} as {file_format}: {text.splitlines()[0]}"
    return (
        f"this Spark cannot read {source}: it lacks the connector for that store, such as "
        "hadoop-aws; copy the files to this machine, use a Spark that has the connector "
        "(--master), or convert Parquet files, which are read without Spark"
    )


def _absolute(source: str) -> str:
    is_url = re.match(r"[a-z][a-z0-9+.-]*:", source) is not None
    return source if is_url else Path(source).absolute().as_uri()
