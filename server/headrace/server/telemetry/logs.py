"""What a server process logs, on standard error: one line an event, for people or as JSON.

An event has a text and, where there is something to search by, fields:
``log.info("stream ended", extra=event(dataset="flights", reason="OK"))``.
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
    """Return the fields of an event as ``extra=`` of the logging functions takes them."""
    return {_FIELDS: fields}


def start_logging(level: LogLevel, log_format: LogFormat) -> None:
    """Send what this process logs to standard error, and what no one catches too.

    Events of other packages come from ``warning`` on alone: below that some of them write headers
    of requests, and with them credentials.
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
    """One JSON object a line; a traceback is a text in it."""

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
        return json.dumps(stated, default=str)


class ConsoleLines(logging.Formatter):
    """One line for a person; the lines of a traceback are joined by ``|``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record).items())
        text = f"{_utc(record.created)} {record.levelname:<7} {record.getMessage()}{fields}"
        if record.exc_info:
            text += f" | {self.formatException(record.exc_info)}"
        return " | ".join(line.strip() for line in text.splitlines())


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    found = getattr(record, _FIELDS, None)
    return found if isinstance(found, Mapping) else {}


def _quoted(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=\n') else text


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _log_uncaught(uncaught: threading.ExceptHookArgs) -> None:
    name = uncaught.thread.name if uncaught.thread else "a thread"
    found = (uncaught.exc_type, uncaught.exc_value or uncaught.exc_type(), uncaught.exc_traceback)
    logging.getLogger("headrace.server").error("%s died of a bug", name, exc_info=found)
