"""Ranges of bytes that are requested over HTTP, and whether an answer contains them.

A cache, a proxy or a store with a fault may answer with other bytes of the same number, which only
the header ``Content-Range`` tells from those that were requested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from headrace.errors import StoreUnavailableError

_PARTIAL = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.IGNORECASE)
_REQUESTED = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
_PAST_THE_END = re.compile(r"bytes \*/(\d{1,18})", re.IGNORECASE)


class WrongBytesError(Exception):
    """An answer has other bytes than those that were requested, or does not state which it has."""

    def at(self, place: str) -> StoreUnavailableError:
        """Return the error to raise, since another answer may be right.

        Args:
            place: The URL of the object.
        """
        return StoreUnavailableError(
            f"{place}: {self}; nothing of it was used, check caches and proxies between here and "
            "the store",
            url=place,
        )


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes ``[first, first + length)`` of an object.

    Attributes:
        first: The first byte.
        length: The number of bytes, > 0, or `None` for the rest of the object.
    """

    first: int = 0
    length: int | None = None

    @property
    def header(self) -> str:
        """The value of the header ``Range``."""
        return f"bytes={self.first}-{'' if self.length is None else self.first + self.length - 1}"

    @property
    def stop(self) -> int | None:
        """The end of the range, or `None` for the end of the object."""
        return None if self.length is None else self.first + self.length

    @classmethod
    def of_header(cls, value: str) -> ByteRange | None:
        """Return the range of a header ``Range``; `None` if it is of another kind."""
        found = _REQUESTED.fullmatch(value)
        if found is None:
            return None
        first = int(found[1])
        return cls(first, int(found[2]) - first + 1 if found[2] else None)

    def of_answer(
        self, status: int, headers: Mapping[str, str], content: bytes
    ) -> tuple[bytes, int | None]:
        """Return the requested bytes from an answer, and the size of the object if it is stated.

        They are fewer than requested only if the answer states that the object ends earlier.

        Args:
            status: 200 or 206.
            headers: The headers, by names in lower case.
            content: The body; of a whole object at least up to the end of the range.

        Raises:
            WrongBytesError: The answer is for another range, or does not state its range.
        """
        stated = headers.get("content-range", "")
        if status == HTTPStatus.OK and not stated:
            length = headers.get("content-length", "")
            return content[self.first : self.stop], int(length) if length.isdecimal() else None
        count, total = self.check_stated(stated)
        if len(content) != count:
            raise self._wrong(f"{len(content)} bytes for Content-Range {stated!r}")
        return content, total

    def check_stated(self, stated: str) -> tuple[int, int | None]:
        """Return the number of bytes of an answer, and the size of the object if it is stated.

        Args:
            stated: The header ``Content-Range``, or an empty text.

        Raises:
            WrongBytesError: It states another range.
        """
        found = _PARTIAL.fullmatch(stated)
        if found is None:
            raise self._wrong(f"Content-Range {stated[:100]!r}")
        first, last = int(found[1]), int(found[2])
        total = None if found[3] == "*" else int(found[3])
        wanted_stop = self.stop if total is None else min(total, self.stop or total)
        if (first, last + 1) != (self.first, wanted_stop):
            raise self._wrong(f"Content-Range {stated!r}")
        return last + 1 - first, total

    def check_is_past_end(self, headers: Mapping[str, str]) -> None:
        """Check an answer that says that the object ends before the range.

        Raises:
            WrongBytesError: It states a size, and the range starts before that.
        """
        stated = headers.get("content-range", "")
        found = _PAST_THE_END.fullmatch(stated)
        if found is not None and self.first < int(found[1]):
            raise self._wrong(f"416 and Content-Range {stated!r}")

    def _wrong(self, found: str) -> WrongBytesError:
        return WrongBytesError(
            f"the answer has other bytes than requested: {found} found, for {self.header}"
        )
