"""The live view: who reads what, how fast, and what each stream waits for."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from headrace.errors import DatasetNotFoundError
from headrace.page.live.rates import WAITS_S, StreamRate, marks, shortages, stream_rates, totals
from headrace.page.live.watch import KEPT_S, Answer
from headrace.page.site import ViewRequest

_WIDTH, _HEIGHT = 900, 70
_MAX_MARKS: Final = 50
_ORDERS: Final = {
    "": lambda one: (one.row["caller"], one.row["dataset"], one.row["rank"]),
    "rate": lambda one: one.samples_per_s,
    "store": lambda one: -one.store,
    "making": lambda one: -one.making,
    "reader": lambda one: -one.reader,
    "position": lambda one: (one.row["epoch"], one.row["position"]),
}


def live(request: ViewRequest) -> Response:
    """Show all open streams to operators, and to other callers their own."""
    if request.site.watch is None:
        raise DatasetNotFoundError("this page has no server; `headrace serve --page` has this view")
    answers = request.site.watch.answers()
    caller = request.caller

    def is_shown(row: dict[str, Any]) -> bool:
        return caller.is_operator or (
            row["caller"] == caller.name and caller.may_read(row["dataset"])
        )

    streams = stream_rates(answers, is_shown)
    order = request.query["sort"] if request.query["sort"] in _ORDERS else ""
    streams.sort(key=_ORDERS[order])
    happened = marks(answers)[:_MAX_MARKS] if caller.is_operator else []
    return request.html(
        "live.html",
        title="Live",
        streams=streams,
        sort=order,
        sorts=list(_ORDERS),
        window=WAITS_S,
        facts=_facts(answers) if caller.is_operator and answers else None,
        chart=_points(answers) if caller.is_operator else "",
        most=_max_rate(answers),
        marks=happened,
        lines=[_WIDTH - mark.ago_s / KEPT_S * _WIDTH for mark in happened],
        size=(_WIDTH, _HEIGHT),
        callers=_callers(streams),
        shortages=shortages(streams),
        kept=KEPT_S,
    )


def _facts(answers: tuple[Answer, ...] | Any) -> list[tuple[str, str, float]]:
    """Return the name, the format and the value of each figure for operators."""
    last = answers[-1]
    hits, misses = (last.total(f"headrace_cache_{each}_total") for each in ("hits", "misses"))
    reads = last.total("headrace_store_fetch_seconds_count")
    took = last.total("headrace_store_fetch_seconds_sum")
    rates = {
        name: (totals(answers, name) or [(0.0, 0.0)])[-1][1]
        for name in ("headrace_sent_payload_bytes_total", "headrace_store_fetch_seconds_count")
    }
    return [
        ("Streams", "count", last.total("headrace_open_streams")),
        ("Sent per second", "bytes", rates["headrace_sent_payload_bytes_total"]),
        ("Cache", "bytes", last.total("headrace_cache_bytes")),
        ("Cache hits", "share", hits / max(hits + misses, 1)),
        ("Store reads per second", "rate", rates["headrace_store_fetch_seconds_count"]),
        ("Mean read", "ms", 1000 * took / max(reads, 1)),
        ("Batches in memory", "bytes", last.total("headrace_payload_bytes")),
        ("Failed store reads", "count", last.total("headrace_store_fetch_errors_total")),
    ]


def _max_rate(answers: Any) -> float:
    return max((rate for _, rate in totals(answers, "headrace_sent_samples_total")), default=0.0)


def _points(answers: Any) -> str:
    """Return the points of the chart: samples sent per second, with the latest on the right."""
    most = _max_rate(answers) or 1.0
    return " ".join(
        f"{_WIDTH - ago / KEPT_S * _WIDTH:.1f},{_HEIGHT - rate / most * (_HEIGHT - 8):.1f}"
        for ago, rate in totals(answers, "headrace_sent_samples_total")
    )


def _callers(streams: list[StreamRate]) -> list[tuple[str, int, float]]:
    """Return each caller with its streams and their samples per second."""
    sums: dict[str, tuple[int, float]] = {}
    for one in streams:
        count, rate = sums.get(one.row["caller"], (0, 0.0))
        sums[one.row["caller"]] = count + 1, rate + one.samples_per_s
    return [(name, count, rate) for name, (count, rate) in sorted(sums.items())]
