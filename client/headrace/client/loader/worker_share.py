"""A dataset inside a DataLoader worker, which reads every N-th batch, one epoch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from headrace.client.batch.batch import Batch
from headrace.client.batch.handover import Origin
from headrace.client.batch.results import WorkerResult
from headrace.client.batch.transformed import TransformedEvent
from headrace.client.feeds.feed import Event
from headrace.client.loader.progress import LoopStart
from headrace.client.loader.steps import of_old_share
from headrace.client.loader.worker_plan import SharedPlace, WorkerPart
from headrace.client.reader.reader import Place
from headrace.client.wire.assembler import BatchEvent
from headrace.errors import TokenSpecChangedError


@dataclass(frozen=True, slots=True)
class ShareSource:
    """The parts of a dataset that its worker's side needs.

    Attributes:
        next_event: Takes the next event of a share; if no stream runs, opens one at a place.
        close: Closes the stream.
        batch_count: Number of batches, of all workers, in an epoch from a position on.
        group_count: The number of ranks with samples of their own.
        restart: Whether each iteration starts the same epoch again.
    """

    next_event: Callable[[Place, WorkerPart], Event | None]
    close: Callable[[], None]
    batch_count: Callable[[int], int]
    group_count: int
    restart: bool


class WorkerSide:
    """The state of a worker's copy of a dataset between its iterations."""

    def __init__(self, key: str) -> None:
        """Start before the first iteration.

        Args:
            key: Identifies the dataset in all processes.
        """
        self.shared = SharedPlace()
        self.place: Place | None = None
        self._key = key
        self._iterations = 0
        self._has_ended = False
        self._has_loaded = False
        self._moves = 0

    def iterate(
        self, share: WorkerPart, own: LoopStart, source: ShareSource
    ) -> Iterator[Batch | WorkerResult]:
        """Yield this worker's batches of the rest of an epoch.

        When this returns, the workers have agreed on the place.
        """
        number, self._iterations = self._iterations, self._iterations + 1
        if self._has_loaded:
            self._has_loaded = False
            assert self.place is not None
            place = self.place
            if self._has_ended or source.batch_count(place.position) <= (place.offset or 0):
                after = replace(own, place=place) if self._has_ended else None
                self.shared.note_finished(share, after)
                return iter(())
        else:
            known, own = own, self.shared.agree(share, number, own)
            if own.resharded != known.resharded:
                # With the first batch: an error before it would end a kept worker without a word.
                refused = of_old_share("this DataLoader's workers were started", "end them")
                return map(_raise, (refused,))
            place = self._agreed(share, own, source)
        self.place, self._has_ended = place, False
        return self._batches(share, Origin(self._key, own.moves), source)

    def state(self, share: WorkerPart) -> dict[str, object]:
        """Return how this worker continues from its place; JSON-serialisable."""
        offset = None if self.place is None else self.place.offset
        return {
            "count": share.count,
            "offset": share.index if offset is None else offset,
            "ended": self._has_ended,
        }

    def load(self, share: WorkerPart, state: object, place: Place) -> None:
        """Continue from another worker's state with the next iteration.

        Raises:
            TokenSpecChangedError: The state belongs to another number of workers.
        """
        self._has_loaded = True
        self._has_ended = False
        self.place = replace(place, offset=share.index)
        if isinstance(state, dict):
            if state.get("count") != share.count:
                raise TokenSpecChangedError(
                    f"the state belongs to one of {state.get('count')} workers, but this is one of "
                    f"{share.count}: keep the number, or use BatchLoader, whose states fit any "
                    "number",
                    wanted=str(state.get("count")),
                )
            self._has_ended = bool(state["ended"])
            self.place = replace(place, offset=int(state["offset"]))

    def _agreed(self, share: WorkerPart, start: LoopStart, source: ShareSource) -> Place:
        place = start.place.moved(start.first_epoch, 0) if source.restart else start.place
        was, moves = self.place, self._moves
        self._moves = start.moves
        goes_on = self._has_ended and moves == start.moves and not source.restart
        if was is None or not goes_on or (place.epoch, place.position) != (was.epoch, 0):
            source.close()
        return replace(place, offset=share.index)

    def _batches(
        self, share: WorkerPart, origin: Origin, source: ShareSource
    ) -> Iterator[Batch | WorkerResult]:
        assert self.place is not None
        epoch, start, count = self.place.epoch, self.place.position, 0
        while (event := source.next_event(self.place, share)) is not None:
            if isinstance(event, BatchEvent):
                count += 1
                after = Place.after(event.header.resume_token)
                offset = share.count - 1 if after.epoch == epoch else share.index
                self.place = replace(after, offset=offset)
                self._has_ended = after.epoch > epoch
                if isinstance(event, TransformedEvent):
                    yield WorkerResult(event.result, event.header.resume_token, origin)
                else:
                    yield Batch.received(event, group_count=source.group_count, origin=origin)
            elif event.epoch >= epoch:
                self.place = replace(Place.after(event.resume_token), offset=share.index)
                # If the rest of an epoch is empty, the main process gets no batch to note, and
                # would start there again and again.
                if count or not start or source.batch_count(start):
                    break
                epoch, start = epoch + 1, 0
        self._has_ended = True


def _raise(error: Exception) -> NoReturn:
    raise error


_results_are_opened = False


def expect_opened(worker: int) -> None:
    """Note, in a worker, that its loader unpacks the results of a function.

    Args:
        worker: Its number, which DataLoader passes to ``worker_init_fn``.
    """
    global _results_are_opened  # noqa: PLW0603 - a worker serves one loader
    del worker
    _results_are_opened = True


def results_are_opened() -> bool:
    """Return whether this worker's loader unpacks the results of a function."""
    return _results_are_opened
