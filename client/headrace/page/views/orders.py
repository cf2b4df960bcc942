"""Views of orders: the shuffle of an epoch, batches as dealt, packed rows, places of ids."""

from __future__ import annotations

from typing import Final

import numpy as np
from starlette.responses import Response

from headrace.cli.stored.labels import StoredLabels
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
from headrace.page.guard.middleware import FILE_POLICY
from headrace.page.runs.figures import figures, labels_of, picture_of
from headrace.page.runs.orders import Deal, dealt, plan_of
from headrace.page.runs.packed import MOST_ROWS, row_lengths, rows_of_batch
from headrace.page.site import Ask
from headrace.page.views.asked import chosen, kept_order, sample_ids_of
from headrace.storage import OpenDataset, open_store

_BATCH: Final = 256
_SHOWN_IDS: Final = 64
_MIB: Final = 1 << 20


def order(ask: Ask) -> Response:
    """Show how options shuffle an epoch, and the places of ids in it."""
    with chosen(ask) as (name, opened):
        spec, deal = _spec(ask), _deal(ask)
        made, labels = kept_order(ask, opened, spec), _labels_of(ask, opened)
        count = deal.global_batch_size
        costs = ask.site.figures.of(
            (opened.fingerprint, spec, ask.query["label"], deal.epoch, count),
            lambda: figures(opened, made, labels, epoch=deal.epoch, batch=count),
        )
        return ask.html(
            "order.html",
            title=f"{name}: order",
            name=name,
            columns=[one.name for one in columns_of(opened.schema)],
            spec=spec,
            deal=deal,
            label=ask.query["label"],
            labels=labels,
            figures=costs,
            batches=plan_of(made, deal).batch_count,
            count=made.sample_count,
            found=_found(ask, made, deal),
        )


def order_picture(ask: Ask) -> Response:
    """Send the picture of an epoch."""
    with chosen(ask) as (_, opened):
        made, labels = kept_order(ask, opened, _spec(ask)), _labels_of(ask, opened)
        drawn = picture_of(made, labels, epoch=_deal(ask).epoch)
    return Response(
        drawn.content, media_type=drawn.media, headers={"content-security-policy": FILE_POLICY}
    )


def batch(ask: Ask) -> Response:
    """Show a batch as it is dealt to ranks, or as packed rows."""
    with chosen(ask) as (name, opened):
        spec, deal = _spec(ask), _deal(ask)
        lengths = _row_lengths(ask, opened)
        length = ask.number("pack", 0)
        packed = length in lengths
        made = kept_order(ask, opened, spec)
        return ask.html(
            "batch.html",
            title=f"{name}: batch {deal.step}",
            name=name,
            spec=spec,
            deal=deal,
            most=_SHOWN_IDS,
            lengths=lengths,
            length=length if packed else 0,
            batches=plan_of(made, deal).batch_count,
            parts=[] if packed else dealt(opened, made, deal),
            rows=_rows(ask, opened, length, spec, deal) if packed else [],
        )


def _labels_of(ask: Ask, dataset: OpenDataset) -> StoredLabels | None:
    """Return the labels that the query names; None without labels, or for too many."""
    if not ask.query["label"]:
        return None
    column = column_named(columns_of(dataset.schema), ask.query["label"]).name
    return ask.site.labels.of((dataset.fingerprint, column), lambda: labels_of(dataset, column))


def _spec(ask: Ask) -> OrderSpec:
    """Return the order of the query; its unit is the batch, as in a run."""
    return OrderSpec(
        seed=ask.number("seed", 0),
        shuffle=ask.query["storage"] != "1",
        run_bytes=ask.number("run", DEFAULT_RUN_BYTES // _MIB, low=1, high=1 << 20) * _MIB,
        shuffle_bytes=ask.number("memory", DEFAULT_SHUFFLE_BYTES // _MIB, high=1 << 30) * _MIB,
        lanes=ask.number("lanes", 1, low=1, high=64),
        unit=max(ask.number("batch", _BATCH, low=1), ask.number("lanes", 1, low=1, high=64)),
    )


def _deal(ask: Ask) -> Deal:
    ends = {mode.value: mode for mode in EndMode}
    return Deal(
        epoch=ask.number("epoch", 0),
        step=ask.number("step", 0),
        global_batch_size=ask.number("batch", _BATCH, low=1),
        world_size=ask.number("ranks", 8, low=1),
        end=ends.get(ask.query["end"], EndMode.DROP_LAST),
    )


def _found(ask: Ask, made: Order, deal: Deal) -> list[tuple[int, list[tuple[int, int, int, int]]]]:
    """Return the places of each requested id: step, rank, row, position."""
    if not ask.query["id"].strip():
        return []
    ids = sample_ids_of(ask.query["id"])
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


def _row_lengths(ask: Ask, opened: OpenDataset) -> list[int]:
    config = ask.site.library.config(ask.caller, ask.path["name"])
    store = open_store(config.place[0], options=config.store)
    try:
        return row_lengths(store, opened.fingerprint)
    finally:
        store.close()


def _rows(ask: Ask, opened: OpenDataset, length: int, spec: OrderSpec, deal: Deal) -> object:
    config = ask.site.library.config(ask.caller, ask.path["name"])
    store = open_store(config.place[0], options=config.store)
    first = deal.step * deal.global_batch_size
    try:
        return rows_of_batch(
            store,
            opened,
            length=length,
            spec=spec,
            epoch=deal.epoch,
            rows=range(first, first + min(deal.global_batch_size, MOST_ROWS)),
        )
    finally:
        store.close()
