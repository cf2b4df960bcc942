"""Collect the settings of a session that can change rows: all that are set, with few exceptions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.converter.keys.java import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where tables are created, what is shown to people or kept for them, and how plans are logged.
_HARMLESS = re.compile(
    r"spark\.sql\.(warehouse\.dir|catalogImplementation|globalTempDatabase"
    r"|(ui|debug|repl|codegen\.logging|planChangeLog|artifact|streaming|thriftServer)\..*"
    r"|execution\.pyspark\.udf\..*[tT]raceback.*|pyspark\.(jvmStacktrace|plotting)\..*)"
)
# Credentials do not change the bytes of a file.
_HARMLESS_OF_HADOOP = re.compile(
    r"spark\..*|hive\.metastore\.warehouse\.dir|hadoop\.tmp\.dir|io\.file\.buffer\.size"
    r"|fs\.s3a\.((bucket\..*\.)?(access\.key|secret\.key|session\.token)|buffer\.dir)"
    r"|mapreduce\.fileoutputcommitter\..*"
)
_SHIPPED = "-default.xml"  # settings that come with Hadoop
_TIME_ZONE = "spark.sql.session.timeZone"
_EXTENSIONS = "spark.sql.extensions"
# Extensions that add statements and tables, and do not change other plans.
_KNOWN_EXTENSIONS = frozenset(
    (
        "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    )
)


def settings_of(session: SparkSession) -> dict[str, object]:
    """Return the settings of a classic session that can change rows and are not in its plans."""
    jvm = jvm_of(session)
    state = session._jsparkSession.sessionState()  # noqa: SLF001 - Spark's only way
    return {
        "spark": session.version,
        "time zone": session.conf.get(_TIME_ZONE) or "",
        "locale": str(jvm.java.util.Locale.getDefault().toLanguageTag()),
        "charset": str(jvm.java.nio.charset.Charset.defaultCharset().name()),
        "sql": row_settings(_as_mapping(jvm, state.conf().settings())),
        "hadoop": _of_hadoop(jvm, state.newHadoopConf()),
    }


def row_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Spark SQL that can change rows.

    Args:
        settings: All settings that are set, by name.
    """
    return {
        name: value
        for name, value in settings.items()
        if name.startswith("spark.sql.") and not _HARMLESS.fullmatch(name)
    }


def unknown_extensions(session: SparkSession) -> list[str]:
    """Return the extensions of a session that may change what plans compute."""
    named = (session.conf.get(_EXTENSIONS, "") or "").split(",")
    return sorted({name.strip() for name in named} - _KNOWN_EXTENSIONS - {""})


def parallelism_of(session: SparkSession) -> int:
    """Return how many partitions Spark makes by default."""
    return int(session.sparkContext.defaultParallelism)


def _as_mapping(jvm: Any, settings: Any) -> dict[str, str]:
    told: dict[str, str] = json.loads(
        jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(settings)
    )
    return told


def _of_hadoop(jvm: Any, configuration: Any) -> dict[str, str]:
    written = jvm.java.io.StringWriter()
    jvm.org.apache.hadoop.conf.Configuration.dumpConfiguration(configuration, written)
    return {
        found["key"]: found["value"]
        for found in json.loads(str(written.toString()))["properties"]
        if not str(found["resource"]).endswith(_SHIPPED)
        and not _HARMLESS_OF_HADOOP.fullmatch(found["key"])
    }
