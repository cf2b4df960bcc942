"""Packing: documents become rows of one length, which ``NAME:LENGTH`` names."""

from __future__ import annotations

from headrace.server.datasets.member import Member
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.server.order_stages.packing.row_mixture import mix_rows
from headrace.server.order_stages.packing.served_rows import OpenRows, length_of
from headrace.server.stream.order_plugs import OrderPlug, Turns
from headrace.server.telemetry.metrics import Metrics


class Plug(OrderPlug):
    """Packs the documents of datasets whose lengths are stored."""

    name = "packing"

    def __init__(self, metrics: Metrics, turns: Turns) -> None:
        super().__init__(metrics, turns)
        self._rows = OpenRows(mix_rows)

    def derived(self, dataset: ServedDataset, suffix: str) -> Member | None:
        """Return the rows of a dataset, if the end of a name states their length.

        Raises:
            DatasetNotFoundError: The tables for packing are not stored for it.
            HeadraceError: The tables cannot be read.
        """
        length = length_of(suffix)
        return None if length is None else self._rows.get(dataset, length)
