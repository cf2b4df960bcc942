"""Where MosaicML's users import the conversion of DataFrames from."""

from headrace.compat.streaming.dataframes import dataframe_to_mds

__all__ = ["dataframe_to_mds"]
