"""Limit the memory of streams: one budget for the server, and fair shares of it.

A `Share` is one stream's part of the `Budget`, for batches that are being made and batches that
wait to be sent.

Contract:

1. All holders together never hold more than the budget.
2. Each caller with a stream has an equal share of the budget, and each of its streams has an equal
   share of that. Memory that nobody else needs may be lent beyond a share.
3. Waiting streams are served in this order: first those that stay within their share, then those
   whose caller stays within its share, then the others, starting with the caller that holds least;
   ties go to the stream that came first. No stream is served before one that is ahead of it.
4. If a claim within its share has waited for `RECALL_S`, memory that others hold beyond their
   shares is recalled, the largest excess first, until there is enough. A recalled stream must end.
5. Memory that was given back counts as held until the next `trim`, because the system may not have
   it before. A `trim` is due when both together exceed the budget.
6. A holder waits for one claim at a time, and leaves the line when it ends. `Share.wake` ends its
   waits, because a stream that has ended must not hold for a moment what others wait for.
7. A stream claims bytes before it allocates them: `Share.claim` states how much making the next
   batches takes in all. If the budget does not have that much, it raises `ShortError`. The stream
   then drops what it has made, waits in `Share.line`, and starts over. So no stream waits while it
   holds memory that does not drain.
8. `Share.keep` turns claimed bytes into bytes that wait to be sent; `Share.sent` releases those.
9. A stream gives unneeded bytes back as soon as it has many of them, or others need them.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from headrace.errors import BadArgumentError

# How long a claim within its share waits before others are recalled (arbitrary). If clients read,
# memory beyond shares drains within milliseconds.
RECALL_S = 1.0

_LOOK_S = 0.25

# Bytes taken and given back at a time (arbitrary), so that batches of a MiB seldom need the budget;
# at most a quarter of each stream's share with the maximum number of streams.
_SLAB_BYTES = 4 << 20
_SLABS = 4

# A message that is being sent is in gRPC's memory and still held by its sender.
_COPIES = 2

_WITHIN_SHARE, _WITHIN_CALLER, _BEYOND = range(3)


@dataclass(eq=False, slots=True)
class _Account:
    """The holders of one caller.

    Attributes:
        name: The name of the caller.
        held: Bytes of all its streams.
        holders: Its streams.
    """

    name: str
    held: int = 0
    holders: set[Holder] = field(default_factory=set)


class Holder:
    """One stream, as the budget sees it.

    Attributes:
        held: Bytes that the stream holds.
    """

    __slots__ = ("account", "held", "is_recalled", "recall")

    def __init__(self, account: _Account, recall: Callable[[], None]) -> None:
        self.account = account
        self.recall = recall
        self.held = 0
        self.is_recalled = False


class Place:
    """A place in the line, as a context manager; `Budget.line` makes one."""

    def __init__(self, budget: Budget, holder: Holder, size: int) -> None:
        self._budget = budget
        self.holder = holder
        self.size = size
        self.since = self.recalled_at = time.monotonic()
        self.is_granted = False
        self._woken = threading.Event()

    def wait(self) -> bool:
        """Wait at most a quarter of a second for the bytes; return whether they were granted."""
        if not self._woken.wait(_LOOK_S):
            self._budget.call_back(self)
        if not self.is_granted:
            return False
        self._budget.trim_stale()
        return True

    def grant(self) -> None:
        """End the wait: the holder has the bytes."""
        self.is_granted = True
        self._woken.set()

    def wake(self) -> None:
        """End the wait, with the bytes or without; any thread may call it."""
        self._woken.set()

    def resize(self, size: int) -> None:
        """Change the number of bytes to wait for."""
        self._budget.resize(self, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._budget.leave_line(self)


class Budget:
    """Bytes that streams share; thread-safe. The contract is above.

    Args:
        total: Bytes of the budget.
        trim: Returns freed memory to the system.

    Attributes:
        is_wanted: Whether a stream waits for bytes.
    """

    def __init__(self, total: int, *, trim: Callable[[], None] = lambda: None) -> None:
        self.total = total
        self._trim = trim
        # Bytes given back since the last trim, and whether the next one is due.
        self._stale = 0
        self._is_stale = False
        self._free = total
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}
        self._line: list[Place] = []
        self.is_wanted = False

    @property
    def held_bytes(self) -> int:
        """Bytes of all holders."""
        return self.total - self._free

    def held_of(self, caller: str) -> int:
        """Return the bytes that the streams of a caller hold."""
        with self._lock:
            account = self._accounts.get(caller)
            return 0 if account is None else account.held

    def join(self, caller: str, recall: Callable[[], None]) -> Holder:
        """Add a stream; `leave` must follow.

        Args:
            caller: The caller of the stream.
            recall: Ends the stream soon because others need its memory; any thread may call it.
        """
        with self._lock:
            account = self._accounts.setdefault(caller, _Account(caller))
            holder = Holder(account, recall)
            account.holders.add(holder)
            return holder

    def leave(self, holder: Holder) -> None:
        """Take back all bytes of a stream, and forget it."""
        with self._lock:
            self._move(holder, -holder.held)
            account = holder.account
            account.holders.discard(holder)
            if not account.holders:
                self._accounts.pop(account.name, None)
            self._serve()

    def try_take(self, holder: Holder, size: int) -> bool:
        """Take bytes if they are free and nobody is ahead; return whether they were taken."""
        with self._lock:
            if size > self._free:
                return False
            if self._line:
                mine = self._rank(holder, size)
                if any(self._rank(place.holder, place.size) <= mine for place in self._line):
                    return False
            self._move(holder, size)
        self.trim_stale()
        return True

    def give(self, holder: Holder, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._move(holder, -size)
            self._serve()

    def line(self, holder: Holder, size: int) -> Place:
        """Return a place in the line for ``size`` more bytes."""
        place = Place(self, holder, size)
        with self._lock:
            self._line.append(place)
            self._serve()
        return place

    def leave_line(self, place: Place) -> None:
        """Give up a place that was not served."""
        with self._lock:
            if place in self._line:
                self._line.remove(place)
            self._serve()

    def resize(self, place: Place, size: int) -> None:
        """Change the bytes that a place waits for, unless it was served already."""
        with self._lock:
            if not place.is_granted:
                place.size = size
                self._serve()

    def trim_stale(self) -> None:
        """Return freed memory to the system if that is due; call it before taking more."""
        if self._is_stale:
            self._is_stale = False
            self._trim()

    def call_back(self, place: Place) -> None:
        """Recall memory that others hold beyond their shares, if that is due."""
        now = time.monotonic()
        with self._lock:
            if place.is_granted or now - place.recalled_at < RECALL_S:
                return
            place.recalled_at = now
            called = self._victims(place)
            for holder in called:
                holder.is_recalled = True
        for holder in called:
            holder.recall()

    def _victims(self, place: Place) -> list[Holder]:
        caller_share = self._caller_share()
        is_within = self._rank(place.holder, place.size) == _WITHIN_SHARE
        if not is_within and place.holder.account.held + place.size > caller_share:
            return []
        beyond: list[tuple[int, Holder]] = []
        missing = place.size - self._free
        for account in self._accounts.values():
            share = caller_share // len(account.holders)
            is_own = account is place.holder.account
            may_call = account.held > caller_share or (is_own and is_within)
            for holder in account.holders:
                if holder.is_recalled:
                    missing -= holder.held
                elif may_call and holder.held > share and holder is not place.holder:
                    beyond.append((holder.held - share, holder))
        beyond.sort(key=lambda one: one[0], reverse=True)
        called = []
        for _, holder in beyond:
            if missing <= 0:
                break
            missing -= holder.held
            called.append(holder)
        return called

    def _serve(self) -> None:
        """Serve the places in the line, in order, with the free bytes."""
        while self._line:
            first = min(self._line, key=self._order)
            if first.size > self._free:
                break
            self._line.remove(first)
            self._move(first.holder, max(0, first.size))
            first.grant()
        self.is_wanted = bool(self._line)

    def _order(self, place: Place) -> tuple[int, int, float]:
        rank = self._rank(place.holder, place.size)
        return rank, place.holder.account.held if rank == _BEYOND else 0, place.since

    def _rank(self, holder: Holder, size: int) -> int:
        account, share = holder.account, self._caller_share()
        if holder.held + size <= share // max(1, len(account.holders)):
            return _WITHIN_SHARE
        return _WITHIN_CALLER if account.held <= share else _BEYOND

    def _caller_share(self) -> int:
        return self.total // max(1, len(self._accounts))

    def _move(self, holder: Holder, size: int) -> None:
        self._free -= size
        if size < 0:
            self._stale -= size
        elif size and self._stale > self._free:
            self._is_stale, self._stale = True, 0
        holder.held += size
        holder.account.held += size


class ShortError(Exception):
    """The budget does not have enough at the moment.

    Attributes:
        making: The bytes that were claimed.
    """

    def __init__(self, making: int) -> None:
        super().__init__(making)
        self.making = making


class Share:
    """The bytes of one stream. One thread makes batches, another may send them.

    The contract is above.

    Args:
        budget: The budget of all streams.
        caller: The caller of the stream.
        recall: Ends the stream soon; any thread may call it.
        message_bytes: Bytes of the largest message.
        streams: The most streams of the server.
    """

    def __init__(
        self,
        budget: Budget,
        caller: str = "",
        *,
        recall: Callable[[], None] = lambda: None,
        message_bytes: int = 0,
        streams: int = 1,
    ) -> None:
        self._budget = budget
        self._holder = budget.join(caller, recall)
        self._message_bytes = message_bytes
        self._slab_bytes = min(_SLAB_BYTES, max(1, budget.total // (_SLABS * streams)))
        self._lock = threading.Lock()
        # Bytes made and bytes sent, each counted by one thread.
        self._made = self._sent = 0
        self._making = self._standing = 0
        self._place: Place | None = None
        self._is_closed = self._is_woken = False

    @property
    def held(self) -> int:
        """Bytes that the stream holds of the budget."""
        return self._holder.held

    @property
    def waiting(self) -> int:
        """Bytes of messages that wait to be sent."""
        return self._made - self._sent

    def stand(self, size: int) -> bool:
        """Hold bytes as long as the stream is open; the latest claim is part of them.

        Returns:
            Whether the bytes were granted; if not, the stream holds none of them.
        """
        with self._lock:
            self._making = 0
            self._standing += size
            if self._fits():
                return True
            self._standing -= size
            return False

    def claim(self, making: int) -> None:
        """Claim bytes for the batches that are made next.

        Args:
            making: All bytes that making them takes, including earlier claims for them.

        Raises:
            BadArgumentError: The whole budget is smaller than this.
            ShortError: The budget does not have enough at the moment.
        """
        with self._lock:
            self._making = making
            # Inlined, because small batches need nothing more.
            size = self._made - self._sent + making
            copied = min(size, self._message_bytes)
            if self._standing + size + _COPIES * copied <= self._holder.held or self._fits():
                return
        self._refuse_more_than_all(making)
        raise ShortError(making)

    def keep(self, size: int, *, making: int = 0) -> None:
        """Count messages that were made and wait to be sent.

        Args:
            size: Bytes of the messages.
            making: Bytes of the claim that are still needed.
        """
        with self._lock:
            spare = self._making - size - making
            self._made += size
            self._making = making
        if spare > self._slab_bytes or self._budget.is_wanted:
            self._give_back()

    def note(self, size: int) -> None:
        """Count a message that is too small for a claim."""
        with self._lock:
            self._made += size

    def drop(self) -> None:
        """Cancel the claim, because nothing was made."""
        self.keep(0)

    def sent(self, size: int) -> None:
        """Count messages that were sent; only the sending thread calls this."""
        self._sent += size
        if self._place is not None or self._budget.is_wanted or size >= self._slab_bytes:
            self._give_back()

    @contextmanager
    def line(self, making: int) -> Iterator[Place]:
        """Enter the line for a claim; the stream holds the bytes when its place is served."""
        with self._lock:
            # A waiting stream must not hold what another one waits for.
            self._making = 0
            self._budget.give(self._holder, max(0, self._holder.held - self._need))
            self._making = making
            missing = max(0, self._need - self._holder.held)
            self._place = place = self._budget.line(self._holder, missing)
            if self._is_woken:
                place.wake()
        try:
            with place:
                yield place
        finally:
            with self._lock:
                self._place = None

    def wake(self) -> None:
        """End every wait in the line, now and later, for the stream ends; for any thread."""
        # No lock is needed: either this sees the place, or the place is made after the mark.
        self._is_woken = True
        if (place := self._place) is not None:
            place.wake()

    def close(self) -> None:
        """Give all bytes back."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._budget.leave(self._holder)

    @property
    def _need(self) -> int:
        size = self._made - self._sent + self._making
        return self._standing + size + _COPIES * min(size, self._message_bytes)

    def _fits(self) -> bool:
        missing = self._need - self._holder.held
        if missing <= 0:
            return True
        slab = -(-missing // self._slab_bytes) * self._slab_bytes
        return self._budget.try_take(self._holder, slab) or self._budget.try_take(
            self._holder, missing
        )

    def _give_back(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            spare = self._holder.held - self._need
            if self._place is not None:
                self._place.resize(max(0, -spare))
            elif spare > 0 and (spare > self._slab_bytes or self._budget.is_wanted):
                self._budget.give(self._holder, spare)

    def _refuse_more_than_all(self, making: int) -> None:
        size = self._standing + making + _COPIES * min(making, self._message_bytes)
        if size > self._budget.total:
            raise BadArgumentError(
                f"a batch needs {size} bytes while it is made, but all batches of this server "
                f"together may use {self._budget.total} (--payload-bytes); use a smaller "
                "global_batch_size, fewer columns or shorter rows",
                field="global_batch_size",
            )
