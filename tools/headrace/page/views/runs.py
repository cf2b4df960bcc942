"""The view of runs: the position of a token, and where two runs first differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from starlette.responses import RedirectResponse, Response

from headrace.errors import HeadraceError
from headrace.order import Order, Token
from headrace.page.runs.comparison import compare
from headrace.page.runs.orders import MAX_SHOWN
from headrace.page.runs.pasted import read_pasted, url_token
from headrace.page.site import ViewRequest, query_of
from headrace.page.views.query import cached_order

_MAX_IDS: Final = 256
_MAX_LINKED: Final = 100
_RUNS: Final = ("one", "two")
_STAGES: Final = {
    "filter": "a filter",
    "skips": "a list of skipped samples",
    "mixture": "a mixture",
}


@dataclass(slots=True)
class _Place:
    """The position of a run.

    Attributes:
        key: ``one`` or ``two``.
        text: Its token, as in URLs.
        token: The decoded token.
        name: Its dataset, if it is here.
        order: Its order, if known.
        ids: The first samples of the next global batch.
        shards: The number of shards with samples of that batch, as far as it is computed.
        blocks: The number of blocks with them.
        why: Why its next samples are not shown.
    """

    key: str
    text: str
    token: Token
    name: str | None = None
    order: Order | None = field(default=None, repr=False)
    ids: list[int] = field(default_factory=list)
    shards: int = 0
    blocks: int = 0
    why: str = ""


def run(request: ViewRequest) -> Response:
    """Show the positions of one or two tokens; a form is redirected to a URL that can be shared."""
    pasted = {
        key: read_pasted(request.query[key].strip()) for key in _RUNS if request.query[key].strip()
    }
    if request.is_form:
        found = {key: url_token(raw) for key, (raw, _) in pasted.items()}
        return RedirectResponse(f"/run?{query_of(found)}", 303)
    places = [_Place(key, url_token(raw), token) for key, (raw, token) in pasted.items()]
    for place in places:
        _find(request, place)
    compared = None
    if len(places) > 1:
        one, two = places
        compared = compare(
            (one.token, one.order), (two.token, two.order), is_one_dataset=one.name == two.name
        )
    return request.html(
        "run.html",
        places={place.key: place for place in places},
        compared=compared,
        most=MAX_SHOWN,
        linked=_MAX_LINKED,
    )


def _find(request: ViewRequest, place: _Place) -> None:
    """Find the dataset, the order and the next samples of a run, as far as a page can know them."""
    token, library = place.token, request.site.library
    if token.stages:
        stages = ", ".join(_STAGES.get(name, name) for name, _ in token.stages)
        place.why = (
            f"they depend on {stages}, of which a token has only the digest; `headrace order` "
            "computes them from the same options"
        )
        return
    place.name = library.version(request.caller, token.fingerprint)
    if place.name is None:
        place.why = f"no dataset that you may read has version {token.fingerprint}"
        return
    try:
        with library.opened(request.caller, place.name, token.fingerprint) as dataset:
            place.order = cached_order(request, dataset, token.spec)
            shown = min(token.global_batch_size, MAX_SHOWN)
            last = min(token.position + shown, place.order.sample_count)
            if token.position >= last:
                place.why = "the epoch is over: the next batch is the first of the next epoch"
                return
            ids = place.order.sample_ids(token.epoch, token.position, last)
            ends = np.cumsum(dataset.shard_sample_counts)
            place.ids = ids[:_MAX_IDS].tolist()
            place.shards = np.unique(np.searchsorted(ends, ids, side="right")).size
            place.blocks = np.unique(dataset.locate(ids)[0]).size
    except HeadraceError as error:
        place.why = request.site.without_urls(error).message
