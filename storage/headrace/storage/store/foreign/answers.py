"""See the answers that file systems of fsspec get over HTTP, so that their ranges can be checked.

fsspec hands over bytes without saying which they are. The file systems that use aiohttp (HTTP,
Google) take an observer of their requests, and those of Azure a hook; both run in the context of
the call that they belong to, however many threads call at once. What other file systems give is
checked by its length alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib import import_module
from typing import Any

from headrace.storage.store.byte_range import ByteRange

_WITH_SESSIONS = {
    **dict.fromkeys(("http", "https"), "client_kwargs"),
    **dict.fromkeys(("gs", "gcs"), "session_kwargs"),
}
"""The option for the sessions of aiohttp, by scheme."""

_SERVED = {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """An answer to a request for a range.

    Attributes:
        wanted: The range.
        status: 200 or 206.
        headers: The headers, by names in lower case.
    """

    wanted: ByteRange
    status: int
    headers: Mapping[str, str]


_seen: ContextVar[list[RangeAnswer] | None] = ContextVar("headrace-answers", default=None)


@contextmanager
def seeing_answers() -> Iterator[list[RangeAnswer]]:
    """Collect the answers to requests for ranges that a call makes."""
    found: list[RangeAnswer] = []
    token = _seen.set(found)
    try:
        yield found
    finally:
        _seen.reset(token)


def observed_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a file system to which an observer of its requests is added."""
    name = _WITH_SESSIONS.get(scheme)
    if name is None:
        return dict(options)
    given = dict(options.get(name) or {})
    given["trace_configs"] = [*given.get("trace_configs", ()), _trace()]
    return {**options, name: given}


def observe(files: Any) -> None:
    """Add the hook to a file system of Azure; others stay as they are."""
    options = getattr(files, "_timeout_kwargs", None)  # what it passes on to all reads
    if type(files).__name__ == "AzureBlobFileSystem" and isinstance(options, dict):
        options["raw_response_hook"] = _see_azure


def checked(content: bytes, wanted: ByteRange, answers: list[RangeAnswer]) -> bytes:
    """Return the requested bytes of a file, whose request may have been divided.

    Raises:
        WrongBytesError: An answer is for another range than its request.
    """
    if len(answers) == 1 and answers[0].wanted == wanted:
        return wanted.of_answer(answers[0].status, answers[0].headers, content)[0]
    for answer in answers:
        answer.wanted.check_stated(answer.headers.get("content-range", ""))
    return content


def _see(requested: Mapping[str, str], status: int, headers: Mapping[str, str]) -> None:
    seen = _seen.get()
    if seen is None or status not in _SERVED:
        return
    sent = {name.lower(): value for name, value in requested.items()}
    wanted = ByteRange.of_header(sent.get("x-ms-range") or sent.get("range") or "")
    if wanted is not None:
        found = {str(name).lower(): str(value) for name, value in headers.items()}
        seen.append(RangeAnswer(wanted, status, found))


def _see_azure(response: Any) -> None:
    _see(
        response.http_request.headers,
        response.http_response.status_code,
        response.http_response.headers,
    )


@cache
def _trace() -> Any:
    # One for all file systems, because fsspec keeps one file system for equal options.
    aiohttp = import_module("aiohttp")  # the file systems that need it have installed it

    async def see(_session: Any, _context: Any, params: Any) -> None:
        _see(params.headers, params.response.status, params.response.headers)

    made = aiohttp.TraceConfig()
    made.on_request_end.append(see)
    return made
