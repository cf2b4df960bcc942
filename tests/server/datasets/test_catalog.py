"""The catalog of a server while its datasets change."""

from __future__ import annotations

from typing import cast

import pytest

from headrace.errors import DatasetNotFoundError
from headrace.server.datasets.catalog import Catalog
from headrace.server.datasets.served_dataset import ServedDataset


def test_rows_of_a_dataset_that_is_removed_meanwhile_are_not_found() -> None:
    """The dataset is served no longer between two looks of one call."""

    class Racing(dict[str, ServedDataset]):
        """Datasets, the last of which is removed once it was found."""

        def __contains__(self, name: object) -> bool:
            found = super().__contains__(name)
            if found:
                catalog.take(str(name))
            return found

    catalog = Catalog(Racing(d=cast("ServedDataset", None)))

    with pytest.raises(DatasetNotFoundError, match="there is no dataset 'd'"):
        catalog.served("d:128")
