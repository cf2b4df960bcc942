"""``df.write.format("headrace")``: Spark 4 looks for packages whose names begin with ``pyspark_``.

It imports them all when it first looks for a data source, so nothing else is imported before it is
needed: a machine may have Spark and only headrace's client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceWriter
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Writes DataFrames as datasets; see ``docs/converter.md``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Plan a conversion.

        Raises:
            HeadraceError: See `headrace.converter.write_shards`.
        """
        from headrace.converter.api.data_source import shard_writer  # noqa: PLC0415 - see above

        return shard_writer(schema, self.options, mode="overwrite" if overwrite else "append")
