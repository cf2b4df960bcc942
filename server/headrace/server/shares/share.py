"""What one stream has of the budget: for what it makes, and for what waits to be sent.

Contract:

1. Bytes are claimed before they are taken of the memory: `claim` says how much the making of the
   next batches takes in all. Where the budget has not that much to give at once, it raises
   `ShortError`: the stream then drops what it has made of them, waits in `line`, and makes them
   again. So nobody waits while it holds what does not drain.
2. `keep` turns what was claimed into what waits to be sent; `sent` takes that off.
3. What is held beyond need is given back as soon as it is more than some, or wanted by others.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import BadArgumentError
from headrace.server.shares.budget import Budget, Place

# What is taken and given back at a time (arbitrary), so that batches of a MiB seldom ask the
# budget; or a quarter of what each stream has where there are as many as there may be.
_SLAB_BYTES = 4 << 20
_SLABS = 4

# A message that is being sent lies in gRPC's memory too, and whoever handed it over still has it.
_COPIES = 2


class ShortError(Exception):
    """The budget has not enough to give at once.

    Attributes:
        making: What was claimed.
    """

    def __init__(self, making: int) -> None:
        super().__init__(making)
        self.making = making


class Share:
    """The bytes of one stream. One thread makes, another may send; the contract is above.

    Args:
        budget: Shared by all streams.
        caller: Whose stream it is.
        recall: Ends the stream soon, from any thread.
        message_bytes: Greatest message.
        streams: Most streams of the server.
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
        # What was made and what was sent, each counted up by one thread.
        self._made = self._sent = 0
        self._making = self._standing = 0
        self._place: Place | None = None
        self._is_closed = False

    @property
    def held(self) -> int:
        """Return the bytes that the stream holds of the budget."""
        return self._holder.held

    @property
    def waiting(self) -> int:
        """Return the bytes of messages that wait to be sent."""
        return self._made - self._sent

    def stand(self, size: int) -> bool:
        """Hold bytes for as long as the stream is open, those that were claimed last among them.

        Returns:
            Whether they are there; else it holds none of them.
        """
        with self._lock:
            self._making = 0
            self._standing += size
            if self._fits():
                return True
            self._standing -= size
            return False

    def claim(self, making: int) -> None:
        """Have bytes for what is made next.

        Args:
            making: All that its making takes at one time, what was claimed for it before included.

        Raises:
            BadArgumentError: The budget is smaller than that.
            ShortError: They are not there.
        """
        with self._lock:
            self._making = making
            # Written out: batches of small samples get no further.
            size = self._made - self._sent + making
            copied = min(size, self._message_bytes)
            if self._standing + size + _COPIES * copied <= self._holder.held or self._fits():
                return
        self._refuse_more_than_all(making)
        raise ShortError(making)

    def keep(self, size: int) -> None:
        """Have made so many bytes of messages, which wait to be sent; nothing else is left."""
        with self._lock:
            spare = self._making - size
            self._made += size
            self._making = 0
        if spare > self._slab_bytes or self._budget.is_wanted:
            self._give_back()

    def note(self, size: int) -> None:
        """Have made a message that is too small to be claimed for."""
        with self._lock:
            self._made += size

    def drop(self) -> None:
        """Have made nothing after all."""
        self.keep(0)

    def sent(self, size: int) -> None:
        """Note that so many bytes of messages have left; for the thread that sends."""
        self._sent += size
        if self._place is not None or self._budget.is_wanted or size >= self._slab_bytes:
            self._give_back()

    @contextmanager
    def line(self, making: int) -> Iterator[Place]:
        """Wait for bytes, as `claim`; they are the stream's when the place is granted."""
        with self._lock:
            # Of those that wait none holds what another waits for.
            self._making = 0
            self._budget.give(self._holder, max(0, self._holder.held - self._need))
            self._making = making
            missing = max(0, self._need - self._holder.held)
            self._place = place = self._budget.line(self._holder, missing)
        try:
            with place:
                yield place
        finally:
            with self._lock:
                self._place = None

    def close(self) -> None:
        """Give all back."""
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
                f"a batch takes {size} bytes while it is made, and all batches of this server "
                f"together may take {self._budget.total} (--payload-bytes); use a smaller "
                "global_batch_size, fewer columns or shorter rows",
                field="global_batch_size",
            )
