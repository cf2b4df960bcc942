"""Apply filters of rows: evaluated once per version of a dataset, for all callers.

Contract:

1. Success: one thread evaluates the filters, reading each block of the dataset once for each. The
   result is kept for later callers, in any spelling of the expression.
2. A call waits briefly, and then fails with the progress (`FilterPendingError`), so that the client
   asks again. So no call blocks a thread, and a call that is abandoned costs nothing.
3. Callers take turns of `_TURN_S`, and so do the filters of each, so that a filter of a small
   dataset does not wait for one of a huge dataset. Before each, the thread waits for a turn among
   the server's other work. A caller has at most `_CALLER_WAITING` waiting filters, all callers
   together `_WAITING`; more wait for room as briefly, and are refused, to be requested later,
   before their expression is parsed, which takes milliseconds. It is parsed once for calls that
   repeat it.
4. Cancel: a filter that nobody has requested for `_WANTED_S` is abandoned, even in progress.
5. Failure: callers within `_FAILED_S` get the error that reading raised; a later call tries again.
   A filter that keeps nothing is a permanent error.
6. Shutdown: `close` stops the evaluation, and waits for the thread.
7. Memory: results of `_BYTES` and `_KNOWN` filters are kept, and the oldest dropped first; streams
   keep the results that they use.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256

from headrace.errors import (
    BadArgumentError,
    DrainingError,
    FilterPendingError,
    HeadraceError,
    InternalError,
    ServerBusyError,
)
from headrace.order import ShardTable, Subset
from headrace.server.access.callers import Caller
from headrace.server.datasets.member import Member
from headrace.server.datasets.narrowed_dataset import NarrowedDataset
from headrace.server.datasets.served_dataset import ServedDataset
from headrace.storage import Filter, make_filter
from headrace.storage.where.evaluate import find_kept_bits
from headrace.v1 import filters_pb2
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed

_WANTED_S = 30.0
_FAILED_S = 5.0
# How often the progress of a filter is logged.
_TOLD_S = 10.0
# Arbitrary; one read and its evaluation usually take less.
_TURN_S = 0.1
_CALLER_WAITING = 4
_WAITING = 64
_BYTES = 256 << 20
_KNOWN = 1024

_log = logging.getLogger(__name__)
_Key = tuple[str, str]
_Turn = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, eq=False)
class _RowFilter:
    """The samples of a dataset's version that a filter keeps.

    Attributes:
        text: The expression in normal form.
        kept: The samples.
        table: The shard table of their order.
    """

    text: str
    kept: Subset
    table: ShardTable


class FilteredDataset(NarrowedDataset):
    """The samples of a dataset that a filter keeps.

    Args:
        base: The dataset.
        rows: The filter and its result.
    """

    def __init__(self, base: ServedDataset, rows: _RowFilter) -> None:
        super().__init__(base, "filter", rows.kept, rows.table)
        self._text = rows.text

    def to_proto(self) -> pb.Dataset:
        """Return the wire's description of the dataset, with the filter."""
        described, kept = super().to_proto(), self.kept
        told = filters_pb2.Filter(where=self._text, digest=kept.digest, sample_count=kept.count)
        described.stages.append(packed(told))
        return described


@dataclass(slots=True, eq=False)
class _Search:
    """A requested filter and its result.

    Attributes:
        served: The dataset; None when the search is over, to release it.
        filtered: The checked expression.
        caller: The first caller.
        wanted: When it was last requested.
        work: Evaluates the filter; yields the number of samples checked.
        turn: The number of its last turn.
        told: When its progress was last logged.
        done: The number of samples checked.
        found: The samples that it keeps; None until they are known.
        error: The error, if it failed.
        failed: When it failed.
    """

    served: ServedDataset | None
    filtered: Filter
    caller: str
    wanted: float
    work: Generator[int, None, None] = field(init=False)
    turn: int = 0
    told: float = 0.0
    done: int = 0
    found: _RowFilter | None = None
    error: HeadraceError | None = None
    failed: float = field(default=0.0)

    @property
    def is_over(self) -> bool:
        """Return whether the search is finished."""
        return self.found is not None or self.error is not None

    @property
    def nbytes(self) -> int:
        """Return the size of the result in bytes."""
        return 0 if self.found is None else self.found.kept.nbytes


class _GivenUpError(Exception):
    """No caller waits for the search any more."""


class Filters:
    """The filters of a server, according to the contract above. Safe for several threads.

    Args:
        clock: Returns seconds of a monotonic clock.
        parse_turn: Waits for a turn of a caller to parse an expression, and holds it.
        search_turn: Waits for a turn of a caller to look for samples, and holds it.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        parse_turn: _Turn = nullcontext,
        search_turn: _Turn = nullcontext,
    ) -> None:
        self._clock = clock
        self._parse_turn, self._search_turn = parse_turn, search_turn
        self._searches: OrderedDict[_Key, _Search] = OrderedDict()
        # Those that are not over.
        self._waiting: list[_Search] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # When each caller had its last turn, counted in turns.
        self._turns: dict[str, int] = {}
        # The filters by dataset and digest of the expression as it was written.
        self._spelled: OrderedDict[tuple[str, bytes], Filter] = OrderedDict()

    def apply(
        self, served: Member, where: str, caller: Caller, *, wait_s: float
    ) -> FilteredDataset:
        """Return the part of a dataset that a filter keeps.

        Args:
            served: The dataset, in the requested version.
            where: The expression.
            caller: The name of the caller.
            wait_s: The most seconds to wait.

        Raises:
            BadArgumentError: The expression is invalid, or keeps no sample.
            FilterPendingError: The result is not known yet; the caller should ask again.
            ServerBusyError: Too many filters are waiting.
            HeadraceError: The dataset cannot be read.
        """
        if served.has_pieces:
            raise BadArgumentError(
                f"where is given for {served.name!r}, whose samples are packed rows of documents; "
                "filter the dataset of documents, or write one with only the documents you want",
                field="where",
            )
        until = self._clock() + wait_s
        base = served.base
        filtered = self._checked(base, where, caller.name, until)
        with self._changed:
            search = self._search(base, filtered, caller.name)
            while not search.is_over and (left_s := until - self._clock()) > 0:
                self._changed.wait(left_s)
            search.wanted = self._clock()
        if search.error is not None:
            # It is kept, and its traceback would keep the frames of all calls so far.
            raise search.error.with_traceback(None)
        if search.found is None:
            raise FilterPendingError(
                f"the server is still finding which samples of {served.name!r} where= keeps, and "
                f"has checked {search.done:,} of {base.dataset.sample_count:,}; ask again",
                done=search.done,
                samples=base.dataset.sample_count,
            )
        rows = search.found
        view = base.narrowed.get_once(rows.kept.digest, lambda: FilteredDataset(base, rows))
        assert isinstance(view, FilteredDataset)
        return view

    def close(self) -> None:
        """Stop the search in progress, and wait for the thread."""
        with self._changed:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _checked(self, served: ServedDataset, where: str, caller: str, until: float) -> Filter:
        """Return the checked expression; refuse one that is new if there is no room in time."""
        spelled = (served.dataset.fingerprint, sha256(where.encode()).digest())
        with self._changed:
            known = self._spelled.get(spelled)
            if known is not None:
                self._spelled.move_to_end(spelled)
                return known
            while not self._has_room(caller) and (left_s := until - self._clock()) > 0:
                self._changed.wait(left_s)
            self._check_room(caller)
        with self._parse_turn(caller):
            filtered = make_filter(where, served.dataset.schema)
        with self._changed:
            self._spelled[spelled] = filtered
            if len(self._spelled) > _KNOWN:
                self._spelled.popitem(last=False)
        return filtered

    def _search(self, served: ServedDataset, filtered: Filter, caller: str) -> _Search:
        if self._is_closed:
            raise DrainingError("the server is shutting down; ask another one")
        now = self._clock()
        key = (served.dataset.fingerprint, filtered.text)
        search = self._searches.get(key)
        if search is not None and search.error is not None and now - search.failed > _FAILED_S:
            del self._searches[key]
            search = None
        if search is None:
            self._check_room(caller)
            search = self._searches[key] = _Search(served, filtered, caller, now, told=now)
            search.work = self._work(search, served)
            self._waiting.append(search)
            try:
                self._ensure_thread()
            except BaseException:
                self._waiting.remove(search)
                del self._searches[key]
                raise
        search.wanted = now
        self._searches.move_to_end(key)
        return search

    def _ensure_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="headrace-filters")
            # The system may have no thread to give.
            thread.start()
            self._thread = thread

    def _has_room(self, caller: str) -> bool:
        mine = sum(search.caller == caller for search in self._waiting)
        return len(self._waiting) < _WAITING and mine < _CALLER_WAITING

    def _check_room(self, caller: str) -> None:
        if not self._has_room(caller):
            mine = sum(search.caller == caller for search in self._waiting)
            raise ServerBusyError(
                f"{len(self._waiting)} filters are waiting here, {mine} of them from this caller "
                f"(at most {_CALLER_WAITING}); ask again when one is done",
            )

    def _run(self) -> None:
        while (search := self._next()) is not None:
            try:
                with self._search_turn(search.caller):
                    self._give_turn(search)
            except _GivenUpError:
                search.work.close()
                self._forget(search)
            except HeadraceError as error:
                self._fail(search, error)
            except Exception:  # noqa: BLE001 - a bug must not end the thread of all filters
                _log.exception("a filter failed")
                self._fail(search, InternalError("the filter could not be applied"))

    def _next(self) -> _Search | None:
        """Return the next search; None ends the thread."""
        with self._changed:
            waiting = self._waiting
            if not waiting:
                self._thread = None
                return None
            # Of the caller whose last turn was the longest ago.
            search = min(waiting, key=lambda each: (self._turns.get(each.caller, 0), each.turn))
            callers = {each.caller for each in waiting}
            self._turns = {name: turn for name, turn in self._turns.items() if name in callers}
            search.turn = max(self._turns.values(), default=0) + 1
            self._turns[search.caller] = search.turn
            return search

    def _give_turn(self, search: _Search) -> None:
        """Evaluate a filter for `_TURN_S`, or to its end."""
        until = self._clock() + _TURN_S
        while True:
            now = self._clock()
            with self._changed:
                if self._is_closed or now - search.wanted > _WANTED_S:
                    raise _GivenUpError
            done = next(search.work, None)
            if done is None:
                return
            search.done = done
            if search.served is not None and now - search.told >= _TOLD_S:
                search.told, name = now, search.served.name
                count = search.served.dataset.sample_count
                _log.info("filter of %r: %d of %d samples", name, done, count)
            if self._clock() >= until:
                return

    def _work(self, search: _Search, served: ServedDataset) -> Generator[int, None, None]:
        dataset, began = served.dataset, self._clock()
        count = dataset.sample_count
        kept = Subset((yield from find_kept_bits(dataset, search.filtered)), count)
        text = search.filtered.text
        if not kept.count:
            self._fail(search, _keeps_nothing(text, served), is_final=True)
            return
        if kept.nbytes > _BYTES:
            self._fail(search, _keeps_too_many(kept, served), is_final=True)
            return
        found = _RowFilter(text, kept, kept.table(served.table))
        seconds = self._clock() - began
        _log.info(
            "filter of %r keeps %d of %d samples, %.1f s: %s",
            *(served.name, kept.count, count, seconds, text),
        )
        with self._changed:
            search.found = found
            self._end(search)

    def _end(self, search: _Search) -> None:
        """Notify waiting callers, and drop the oldest results if there are too many."""
        search.served = None
        self._waiting.remove(search)
        self._changed.notify_all()
        over = [(key, each.nbytes) for key, each in self._searches.items() if each.is_over]
        total, count = sum(size for _, size in over), len(over)
        for key, size in over:
            if total <= _BYTES and count <= _KNOWN:
                return
            total, count = total - size, count - 1
            del self._searches[key]

    def _forget(self, search: _Search) -> None:
        with self._changed:
            self._waiting.remove(search)
            self._changed.notify_all()
            for key in [key for key, each in self._searches.items() if each is search]:
                del self._searches[key]

    def _fail(self, search: _Search, error: HeadraceError, *, is_final: bool = False) -> None:
        with self._changed:
            search.error = error
            search.failed = float("inf") if is_final else self._clock()
            self._end(search)


def _keeps_nothing(text: str, served: ServedDataset) -> BadArgumentError:
    return BadArgumentError(
        f"where keeps none of the {served.dataset.sample_count:,} samples of {served.name!r}: "
        f"{text}; `headrace cat URL` shows what they hold",
        field="where",
    )


def _keeps_too_many(kept: Subset, served: ServedDataset) -> BadArgumentError:
    return BadArgumentError(
        f"where keeps {kept.count:,} samples of {served.name!r}, but a server can store at most "
        f"{_BYTES // 2:,}; write a dataset that contains only them",
        field="where",
    )
