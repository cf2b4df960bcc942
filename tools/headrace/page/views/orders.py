"""Views of orders: the shuffle of an epoch, the batches of ranks, and packed rows."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from headrace.cli.stored.composition import Groups, groups_of, shares_of
from headrace.cli.stored.labels import StoredLabels, read_labels
from headrace.cli.stored.order_cost import order_cost
from headrace.order import (
    DEFAULT_RUN_BYTES,
    DEFAULT_SHUFFLE_BYTES,
    EndMode,
    Order,
    OrderSpec,
    find_rows,
)
from headrace.page.data.samples import column_named
from headrace.page.data.values import columns_of
from headrace.page.runs.orders import Deal, plan_of, rank_parts
from headrace.page.runs.packed import MAX_ROWS, row_lengths, rows_of_batch
from headrace.page.site import ViewRequest
from headrace.page.views.query import cached_order, open_requested, sample_ids_of
from headrace.storage import OpenDataset, Store, open_store

_BATCH: Final = 256
_SHOWN_IDS: Final = 64
_DRAWN: Final = 256
_MIB: Final = 1 << 20
_LABEL_BYTES: Final = 64 << 20
_MAX_MEASURED: Final = 1 << 21
"""The maximum number of samples to measure label by label, which takes a third of a second."""
_WIDTH, _HEIGHT = 960, 120


def order(request: ViewRequest) -> Response:
    """Show how options shuffle an epoch, and the positions of ids."""
    with open_requested(request) as (name, opened):
        spec, deal = _spec(request), _deal(request)
        made, labels = cached_order(request, opened, spec), _labels_of(request, opened)
        count = deal.global_batch_size
        groups = _groups(request, opened, labels)
        values = None if labels is None else labels.labels
        cost = request.site.costs.get(
            (opened.fingerprint, spec, request.query["label"], deal.epoch, count),
            lambda: order_cost(opened, made, values, batch_size=count, epoch=deal.epoch),
        )
        return request.html(
            "order.html",
            name=name,
            columns=[one.name for one in columns_of(opened.schema)],
            spec=spec,
            deal=deal,
            label=request.query["label"],
            labels=labels,
            cost=cost,
            groups=groups.names,
            compositions=[
                (title, _paths(shares), 100 * shares.std(axis=0).mean())
                for title, shares in zip(
                    ("This order", "A uniform shuffle"),
                    shares_of(made, groups, epoch=deal.epoch),
                    strict=True,
                )
            ],
            batches=plan_of(made, deal).batch_count,
            count=made.sample_count,
            found=_found(request, made, deal),
        )


def batch(request: ViewRequest) -> Response:
    """Show the part of each rank in a batch, or its packed rows."""
    with open_requested(request) as (name, opened):
        spec, deal = _spec(request), _deal(request)
        with _open_store(request) as store:
            lengths = row_lengths(store, opened.fingerprint)
        length = request.number("pack", 0)
        packed = length in lengths
        made = cached_order(request, opened, spec)
        groups = _groups(request, opened, _labels_of(request, opened))
        parts = [] if packed else rank_parts(opened, made, deal)
        return request.html(
            "batch.html",
            name=name,
            spec=spec,
            deal=deal,
            most=_SHOWN_IDS,
            lengths=lengths,
            length=length if packed else 0,
            batches=plan_of(made, deal).batch_count,
            columns=[one.name for one in columns_of(opened.schema)],
            label=request.query["label"],
            groups=groups.names,
            parts=[(part, groups.of(part.sample_ids[:_DRAWN]).tolist()) for part in parts],
            rows=_rows(request, opened, length, spec, deal) if packed else [],
        )


def _labels_of(request: ViewRequest, dataset: OpenDataset) -> StoredLabels | None:
    """Return the labels that the query names; None without labels, or for too many samples."""
    if not request.query["label"] or dataset.sample_count > _MAX_MEASURED:
        return None
    column = column_named(columns_of(dataset.schema), request.query["label"]).name
    return request.site.labels.get(
        (dataset.fingerprint, column),
        lambda: read_labels(dataset, column, max_bytes=_LABEL_BYTES, progress=nullcontext),
    )


def _paths(shares: NDArray[np.float64]) -> list[str]:
    """Return an SVG path for each group: its bars, which stand on those of the groups before."""
    tops, width = np.cumsum(shares, axis=1), _WIDTH / len(shares)
    return [
        "".join(
            f"M{x * width:.1f} {_HEIGHT * (1 - top):.1f}h{width - 0.6:.1f}v{_HEIGHT * share:.1f}"
            f"h{0.6 - width:.1f}z"
            for x, (top, share) in enumerate(zip(tops[:, at], shares[:, at], strict=True))
            if share
        )
        for at in range(shares.shape[1])
    ]


def _groups(request: ViewRequest, dataset: OpenDataset, labels: StoredLabels | None) -> Groups:
    columns = columns_of(dataset.schema)
    label = request.query["label"]
    classes = column_named(columns, label).classes if label else None
    return groups_of(labels, classes, dataset.sample_count)


def _spec(request: ViewRequest) -> OrderSpec:
    """Return the order options of the query; the unit is the batch, as in a run."""
    return OrderSpec(
        seed=request.number("seed", 0),
        shuffle=request.query["storage"] != "1",
        run_bytes=request.number("run", DEFAULT_RUN_BYTES // _MIB, low=1, high=1 << 20) * _MIB,
        shuffle_bytes=request.number("memory", DEFAULT_SHUFFLE_BYTES // _MIB, high=1 << 30) * _MIB,
        lanes=request.number("lanes", 1, low=1, high=64),
        unit=max(
            request.number("batch", _BATCH, low=1), request.number("lanes", 1, low=1, high=64)
        ),
        ramp=request.query["ramp"] != "0",
    )


def _deal(request: ViewRequest) -> Deal:
    ends = {mode.value: mode for mode in EndMode}
    return Deal(
        epoch=request.number("epoch", 0),
        step=request.number("step", 0),
        global_batch_size=request.number("batch", _BATCH, low=1),
        world_size=request.number("ranks", 8, low=1),
        end=ends.get(request.query["end"], EndMode.DROP_LAST),
    )


def _found(
    request: ViewRequest, made: Order, deal: Deal
) -> list[tuple[int, list[tuple[int, int, int, int]]]]:
    """Return step, rank, row and position for each requested id."""
    if not request.query["id"].strip():
        return []
    ids = sample_ids_of(request.query["id"])
    plan = plan_of(made, deal)
    every = made.find_each(deal.epoch, np.array(ids, np.int64))
    return [
        (
            sample,
            [
                (row.index, row.rank, row.row, position)
                for position in positions.tolist()
                for row in find_rows(plan, position, world_size=deal.world_size)
            ],
        )
        for sample, positions in zip(ids, every, strict=True)
    ]


def _rows(
    request: ViewRequest, opened: OpenDataset, length: int, spec: OrderSpec, deal: Deal
) -> object:
    first = deal.step * deal.global_batch_size
    with _open_store(request) as store:
        return rows_of_batch(
            store,
            opened,
            length=length,
            spec=spec,
            epoch=deal.epoch,
            rows=range(first, first + min(deal.global_batch_size, MAX_ROWS)),
        )


def _open_store(request: ViewRequest) -> closing[Store]:
    config = request.site.library.config(request.caller, request.path["name"])
    return closing(open_store(config.place[0], options=config.store))
