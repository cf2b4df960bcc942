"""The Spark session of a command, and the frames that files make."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import BadArgumentError, ColumnNotFoundError, ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("csv", "images", "json", "orc", "parquet", "text")

_FORMAT_OF_SUFFIX = {
    ".csv": "csv",
    ".gif": "images",
    ".jpeg": "images",
    ".jpg": "images",
    ".json": "json",
    ".jsonl": "json",
    ".orc": "orc",
    ".parquet": "parquet",
    ".png": "images",
    ".txt": "text",
    ".webp": "images",
}


def start_spark(master: str, *, verbose: bool) -> SparkSession:
    """Start a session.

    Args:
        master: Spark's master URL, such as ``local[*]``.
        verbose: Whether Spark's own log goes to standard error, or nowhere.

    Raises:
        ConfigurationError: There is no Java.
    """
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        raise ConfigurationError(
            "Spark needs Java 17 or newer, and no `java` was found on PATH or in JAVA_HOME; "
            "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"
        )
    from pyspark.sql import SparkSession  # noqa: PLC0415 - needs the [converter] extra

    # Workers must be this interpreter, or they lack our packages; and a local session must not
    # listen on the machine's outer address.
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
    with _without_standard_error():
        return builder.config("spark.log.level", "ERROR").getOrCreate()


@contextmanager
def _without_standard_error() -> Iterator[None]:
    # The JVM takes the descriptor over when it is started. What matters of its words comes back
    # in exceptions; the rest is noise before a session exists that could be told to be quiet.
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def guess_format(source: str) -> str:
    """Say what format a file or folder holds, by the names in it.

    Raises:
        BadArgumentError: Nothing is there, or its names tell nothing.
    """
    path = Path(source.removeprefix("file://"))
    if "://" not in source.removeprefix("file://") and not path.exists():
        raise BadArgumentError(f"{source} does not exist; wanted a file or folder", field="SRC")
    names = [path, *(sorted(path.rglob("*"))[:1000] if path.is_dir() else ())]
    for name in names:
        found = _FORMAT_OF_SUFFIX.get(Path(name.name.removesuffix(".gz")).suffix.lower())
        if found is not None:
            return found
    raise BadArgumentError(
        f"nothing in the names at {source} tells its format; say --format, one of "
        f"{', '.join(FORMATS)}",
        field="format",
    )


def read_frame(
    spark: SparkSession, source: str, *, file_format: str, null_value: str | None = None
) -> DataFrame:
    """Make a DataFrame of files.

    ``images`` gives the columns ``image`` (the file's bytes) and ``label`` (its folder's name);
    CSV files have a header line, and their types are inferred; ``null_value`` in them is null.

    Raises:
        BadArgumentError: Spark cannot read them.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        if file_format == "images":
            return _image_frame(spark, source)
        reader = spark.read
        if file_format == "csv":
            reader = reader.option("header", value=True).option("inferSchema", value=True)
            if null_value is not None:
                reader = reader.option("nullValue", null_value)
        return reader.format(file_format).load(source)
    except PySparkException as error:
        first = str(error).splitlines()[0]
        raise BadArgumentError(
            f"Spark cannot read {source} as {file_format}: {first}", field="SRC"
        ) from error


def select_columns(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Keep some columns, in the order given.

    Raises:
        ColumnNotFoundError: The frame lacks one of them.
    """
    for name in names:
        if name not in frame.columns:
            raise ColumnNotFoundError(
                f"there is no column {name!r}; there are {', '.join(frame.columns)}", column=name
            )
    return frame.select(*(f"`{name}`" for name in names))


def _image_frame(spark: SparkSession, source: str) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    files = spark.read.format("binaryFile").option("recursiveFileLookup", value=True).load(source)
    return files.where(f.lower("path").rlike(r"\.(png|jpe?g|gif|webp)$")).select(
        f.col("content").alias("image"),
        f.regexp_extract("path", r"([^/]+)/[^/]+$", 1).alias("label"),
    )
