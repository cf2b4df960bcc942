"""Views of orders: the shuffle of an epoch, the batches of ranks, and packed rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from headrace.cli.stored.composition import Groups, groups_of, shares_of
from headrace.cli.stored.labels import StoredLabels, read_labels
from headrace.cli.stored.mesh_picture import mesh_of
from headrace.cli.stored.order_cost import order_cost
from headrace.order import (
    DEFAULT_RUN_BYTES,
    DEFAULT_SHUFFLE_BYTES,
    EndMode,
    Order,
    OrderSpec,
    SequenceLayout,
    find_rows,
)
from headrace.page.data.samples import column_named
from headrace.page.data.values import columns_of
from headrace.page.runs.orders import Deal, plan_of, rank_parts, ranks_of
from headrace.page.runs.packed import Piece, row_lengths, rows_of_batch
from headrace.page.site import ViewRequest
from headrace.page.views.query import cached_order, open_requested, sample_ids_of
from headrace.storage import OpenDataset, Store, open_store

_BATCH: Final = 256
_RANKS: Final = 8
_SHOWN_IDS: Final = 64
_DRAWN: Final = 256
_STRIPS: Final = 64
_MIB: Final = 1 << 20
_LABEL_BYTES: Final = 64 << 20
_MAX_MEASURED: Final = 1 << 21
"""The maximum number of samples to measure label by label, which takes a third of a second."""
_TITLES: Final = ("This order", "A uniform shuffle")
_EVEN: Final = 1.25
"""How much more than a uniform shuffle an even one may vary; chance makes a tenth."""
_RAMP_RUNS: Final = 32
"""With fewer in memory there is no ramp."""
_WIDTH, _HEIGHT = 960, 120


def order(request: ViewRequest) -> Response:
    """Show how options shuffle an epoch, and the positions of ids."""
    with open_requested(request) as opened:
        made, deal, labels, groups, shown = _asked(request, opened)
        values, count = None if labels is None else labels.labels, deal.global_batch_size
        cost = request.site.costs.get(
            (opened.fingerprint, made.spec, request.query["label"], deal.epoch, count),
            lambda: order_cost(opened, made, values, batch_size=count, epoch=deal.epoch),
        )
        shares = shares_of(made, groups, epoch=deal.epoch)
        spreads = [100 * each.std(axis=0).mean() for each in shares]
        return request.html(
            "order.html",
            **shown,
            labels=labels,
            cost=cost,
            compositions=[
                (title, _paths(each), spread)
                for title, each, spread in zip(_TITLES, shares, spreads, strict=True)
            ],
            verdict=_verdict(made, deal.epoch, *spreads),
            count=made.sample_count,
            found=_found(request, made, deal),
        )


def batch(request: ViewRequest) -> Response:
    """Show the part of each rank in a batch, or its packed rows."""
    with open_requested(request) as opened, _open_store(request) as store:
        made, deal, _, groups, shown = _asked(request, opened)
        lengths, length = row_lengths(store, opened.fingerprint), request.number("pack", 0)
        rows: Sequence[tuple[int, Sequence[Piece]]] = ()
        parts, places = [], deal.places
        if length in lengths:
            rows, shown["batches"] = rows_of_batch(
                store, opened, length=length, spec=made.spec, deal=deal
            )
        else:
            parts = rank_parts(opened, made, deal)
        return request.html(
            "batch.html",
            **shown,
            most=_SHOWN_IDS,
            lengths=lengths,
            length=length,
            parts=[
                (part, groups.of(part.sample_ids[:_DRAWN]).tolist(), ranks_of(places, number))
                for number, part in enumerate(parts[:_STRIPS])
            ],
            axes=deal.mesh.sizes if len(deal.mesh.sizes) > 1 else (),
            places=[(*place, parts[place[0].data[0]]) for place in places] if parts else [],
            rows=[(ranks_of(places, part), pieces) for part, pieces in rows],
        )


def _asked(
    request: ViewRequest, opened: OpenDataset
) -> tuple[Order, Deal, StoredLabels | None, Groups, dict[str, Any]]:
    """Return what a query asks for, and what both views show of it."""
    deal = _deal(request, opened.sample_count)
    made = cached_order(request, opened, _spec(request, deal.global_batch_size))
    labels, columns, label = None, columns_of(opened.schema), request.query["label"]
    classes = column_named(columns, label).classes if label else None
    if label and opened.sample_count <= _MAX_MEASURED:
        labels = request.site.labels.get(
            (opened.fingerprint, label),
            lambda: read_labels(opened, label, max_bytes=_LABEL_BYTES, progress=nullcontext),
        )
    groups = groups_of(labels, classes, opened.sample_count)
    shown = {
        "deal": deal,
        "spec": made.spec,
        "label": label,
        "columns": [one.name for one in columns],
        "groups": groups.names,
        "batches": plan_of(made, deal).batch_count,
    }
    return made, deal, labels, groups, shown


def _verdict(order: Order, epoch: int, spread: float, uniform: float) -> tuple[bool, str]:
    """Say whether an epoch is as even as a uniform shuffle, and why not, in words."""
    times = spread / uniform if uniform else 1.0
    by = (
        f"the shares below vary by {spread:.2f} points from part to part of the epoch, those of a "
        f"uniform shuffle by {uniform:.2f}."
    )
    if times < _EVEN:
        how = "As even as" if times > 1 / _EVEN else "More even than"
        return True, f"{how} a uniform shuffle: {by}"
    shuffled = min(order.memory_samples / order.sample_count, 1 / order.spec.lanes)
    if not order.spec.shuffle:
        why = "Samples come in the order of the storage."
    elif epoch == 0 and order.spec.ramp and order.run_count * shuffled >= _RAMP_RUNS:
        why = "Epoch 0 begins with a ramp of small steps for an early first batch; others do not."
    elif order.memory_samples >= order.sample_count:
        why = "That is chance: all of it is shuffled together."
    else:
        why = "More memory, or shorter runs, would make it more even."
    return False, f"{times:.1f} times as uneven as a uniform shuffle: {by} {why}"


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


def _spec(request: ViewRequest, batch: int) -> OrderSpec:
    """Return the order options of the query; the unit is the batch, as in a run."""
    lanes = request.number("lanes", 1, low=1, high=64)
    return OrderSpec(
        seed=request.number("seed", 0),
        shuffle=request.query["storage"] != "1",
        run_bytes=request.number("run", DEFAULT_RUN_BYTES // _MIB, low=1, high=1 << 20) * _MIB,
        shuffle_bytes=request.number("memory", DEFAULT_SHUFFLE_BYTES // _MIB, high=1 << 30) * _MIB,
        lanes=lanes,
        unit=max(batch, lanes),
        ramp=request.query["ramp"] != "0",
    )


def _deal(request: ViewRequest, count: int) -> Deal:
    ends = {mode.value: mode for mode in EndMode}
    batch = request.number("batch", min(_BATCH, max(count, 1)), low=1)
    ranks = request.query["ranks"].strip() or str(min(_RANKS, batch))
    layouts = {one.value: one for one in SequenceLayout}
    return Deal(
        epoch=request.number("epoch", 0),
        step=request.number("step", 0),
        global_batch_size=batch,
        mesh=mesh_of(f"dp={ranks}" if "=" not in ranks else ranks),
        end=ends.get(request.query["end"], EndMode.DROP_LAST),
        length=request.number("sequence", 0, high=1 << 30) or None,
        layout=layouts.get(request.query["layout"], SequenceLayout.ZIGZAG),
    )


def _found(
    request: ViewRequest, made: Order, deal: Deal
) -> list[tuple[int, list[tuple[int, str, int, int]]]]:
    """Return step, ranks, row and position for each requested id."""
    if not request.query["id"].strip():
        return []
    ids = sample_ids_of(request.query["id"])
    plan, places = plan_of(made, deal), deal.places
    every = made.find_each(deal.epoch, np.array(ids, np.int64))
    return [
        (
            sample,
            [
                (row.index, ranks_of(places, row.rank), row.row, position)
                for position in positions.tolist()
                for row in find_rows(plan, position, world_size=deal.world_size)
            ],
        )
        for sample, positions in zip(ids, every, strict=True)
    ]


def _open_store(request: ViewRequest) -> closing[Store]:
    config = request.site.library.config(request.caller, request.path["name"])
    return closing(open_store(config.place[0], options=config.store))
