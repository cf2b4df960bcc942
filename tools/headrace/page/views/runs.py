"""The view of runs: the position of a token, and where two runs first differ."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from starlette.responses import RedirectResponse, Response

from headrace.errors import HeadraceError
from headrace.order import Token
from headrace.page.guard.middleware import MAX_TARGET_BYTES
from headrace.page.runs.comparison import Comparison, compare
from headrace.page.runs.members import Finder, UnknownRunError
from headrace.page.runs.orders import MAX_SHOWN
from headrace.page.runs.pasted import PastedText, read_pasted, url_token
from headrace.page.runs.run_options import RunOptions
from headrace.page.runs.run_order import (
    Member,
    RunOrder,
    check_members,
    order_of_run,
)
from headrace.page.site import ViewRequest, query_of
from headrace.page.views.query import cached_order

_MAX_IDS: Final = 256
_MAX_LINKED: Final = 100
_RUNS: Final = ("one", "two")
_OPTIONS: Final = ("where", "skips", "mixture")
_REFUSED: Final = 409


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of the next global batch from one dataset.

    Attributes:
        name: The name of the dataset.
        fingerprint: Its version.
        count: The number of its samples in the batch.
        ids: The first of these ids.
        shards: The shards with these samples, and the number of samples in each.
        blocks: The number of blocks with these samples.
    """

    name: str
    fingerprint: str
    count: int
    ids: list[int]
    shards: list[tuple[int, int]]
    blocks: int


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a run.

    Attributes:
        key: ``one`` or ``two``.
        text: Its token, as in URLs.
        token: The decoded token.
        options: The options of the run that are known besides its token.
        names: Its datasets and their versions, as far as known.
        total: The number of samples in an epoch; 0 if unknown.
        ids: The first samples of the next global batch, with their datasets in mixtures.
        parts: The part of that batch from each dataset.
        why: Why its next samples are not shown.
        is_refused: Whether the options belong to another run or cannot be parsed.
    """

    key: str
    text: str
    token: Token
    options: RunOptions
    names: tuple[tuple[str, str], ...] = ()
    total: int = 0
    ids: tuple[str, ...] = ()
    parts: tuple[_Part, ...] = ()
    why: str = ""
    is_refused: bool = False


def run(request: ViewRequest) -> Response:
    """Show the positions of one or two tokens; a form is redirected to a URL that can be shared."""
    pasted = {key: _pasted(request, key) for key in _RUNS if request.query[key].strip()}
    is_too_long = False
    if request.is_form:
        address = f"/run?{_query(pasted)}"
        is_too_long = len(address) > MAX_TARGET_BYTES
        if not is_too_long:
            return RedirectResponse(address, 303)
    with ExitStack() as stack:
        finder = Finder(request.site.library, request.site.filters, request.caller, stack)
        found = [_placed(request, key, one, finder) for key, one in pasted.items()]
        compared: Comparison | None = None
        if len(found) > 1:
            (one, first), (two, second) = found
            compared = compare((one.token, first), (two.token, second))
        return request.html(
            "run.html",
            status=_REFUSED if any(place.is_refused for place, _ in found) else 200,
            title="Runs",
            places={place.key: place for place, _ in found},
            compared=compared,
            is_too_long=is_too_long,
            most=MAX_SHOWN,
        )


def _pasted(request: ViewRequest, key: str) -> PastedText:
    """Return the fields of a run; typed options override those of a state."""
    found = read_pasted(request.query[key].strip())
    typed = RunOptions(*(request.query[f"{what}_{key}"].strip() for what in _OPTIONS))
    return PastedText(found.raw, found.token, typed.or_else(found.options))


def _query(pasted: dict[str, PastedText]) -> str:
    fields: dict[str, str | None] = {}
    for key, one in pasted.items():
        fields[key] = url_token(one.raw)
        for what in _OPTIONS:
            fields[f"{what}_{key}"] = getattr(one.options, what) or None
    return query_of(fields)


def _placed(
    request: ViewRequest, key: str, pasted: PastedText, finder: Finder
) -> tuple[_Place, RunOrder | None]:
    def place(**known: object) -> _Place:
        return _Place(key, url_token(pasted.raw), pasted.token, pasted.options, **known)  # type: ignore[arg-type]

    try:
        made = _run_order(request, pasted, finder)
    except UnknownRunError as error:
        return place(why=str(error)), None
    except HeadraceError as error:
        return place(why=request.site.without_urls(error).message, is_refused=True), None
    names = tuple((member.name, member.dataset.fingerprint) for member in made.members)
    token, total = pasted.token, made.order.sample_count
    shown = min(token.global_batch_size, MAX_SHOWN)
    last = min(token.position + shown, total)
    if token.position >= last:
        why = "the epoch is over: the next batch is the first of the next epoch"
        return place(names=names, total=total, why=why), made
    ids = made.order.sample_ids(token.epoch, token.position, last)
    owners, own = made.split(ids)
    pairs = zip(owners[:_MAX_IDS].tolist(), own[:_MAX_IDS].tolist(), strict=True)
    return place(
        names=names,
        total=total,
        ids=tuple(f"{owner}:{one}" if len(names) > 1 else str(one) for owner, one in pairs),
        parts=tuple(
            _part(member, own[owners == number])
            for number, member in enumerate(made.members)
            if (owners == number).any()
        ),
    ), made


def _run_order(request: ViewRequest, pasted: PastedText, finder: Finder) -> RunOrder:
    token = pasted.token
    if token.stage("buckets"):
        raise UnknownRunError(
            "its batches are buckets of similar length, and only a server reads the lengths"
        )
    members, mixture = finder.members(token, pasted.options)
    check_members(token, members, mixture)
    if not any(map(token.stage, ("mixture", "filter", "skips"))):
        return RunOrder(tuple(members), cached_order(request, members[0].dataset, token.spec))
    # The order depends only on the digests, which were checked; members are closed after this view.
    key = (token.fingerprint, token.spec, token.stages)
    return RunOrder(
        tuple(members), request.site.runs.get(key, lambda: order_of_run(token, members, mixture))
    )


def _part(member: Member, ids: NDArray[np.int64]) -> _Part:
    blocks, _ = member.dataset.locate(ids)
    ends = np.cumsum(member.dataset.shard_sample_counts)
    shards, counts = np.unique(np.searchsorted(ends, ids, side="right"), return_counts=True)
    return _Part(
        member.name,
        member.dataset.fingerprint,
        ids.size,
        ids[:_MAX_LINKED].tolist(),
        list(zip(shards.tolist(), counts.tolist(), strict=True)),
        int(np.unique(blocks).size),
    )
