"""Log to standard error, one line per event, for people or as JSON.

An event has a text and, if there is something to search by, fields: ``log.info("stream ended",
extra=event(dataset="flights", reason="OK"))``.

Events repeat what clients sent. So characters that a terminal obeys instead of showing them are
written as escapes: control characters, and those that reverse or hide text.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping

from headrace.server.settings.server_config import LogFormat, LogLevel

_FIELDS = "headrace_fields"


def event(**fields: object) -> dict[str, object]:
    """Return the fields of an event for the ``extra=`` argument of logging functions."""
    return {_FIELDS: fields}


def start_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Send this process's log to standard error, including uncaught exceptions.

    Events of other packages are included from ``warning`` on: below that, some write the headers of
    requests, which contain credentials.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else ConsoleLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("headrace").setLevel(level.upper())
    logging.captureWarnings(True)
    threading.excepthook = _log_uncaught


class JsonLines(logging.Formatter):
    """Format events as one JSON object per line, with tracebacks as text."""

    def format(self, record: logging.LogRecord) -> str:
        stated = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            stated["traceback"] = self.formatException(record.exc_info)
        # All that is not ASCII is escaped, and of ASCII all control characters but this one.
        return json.dumps(stated, default=str).replace("\x7f", "\\u007f")


class ConsoleLines(logging.Formatter):
    """Format events as one line for people, with the lines of tracebacks joined by ``|``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record).items())
        text = f"{_utc(record.created)} {record.levelname:<7} {record.getMessage()}{fields}"
        if record.exc_info:
            text += f" | {self.formatException(record.exc_info)}"
        return " | ".join(_plain(line.strip()) for line in text.strip().split("\n"))


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    found = getattr(record, _FIELDS, None)
    return found if isinstance(found, Mapping) else {}


def _plain(text: str) -> str:
    """Return a text with escapes in place of what is not shown as itself."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _quoted(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=\n') else text


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _log_uncaught(uncaught: threading.ExceptHookArgs) -> None:
    name = uncaught.thread.name if uncaught.thread else "a thread"
    found = (uncaught.exc_type, uncaught.exc_value or uncaught.exc_type(), uncaught.exc_traceback)
    logging.getLogger("headrace.server").error("%s ended because of a bug", name, exc_info=found)
